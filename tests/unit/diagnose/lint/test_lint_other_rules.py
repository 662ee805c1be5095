"""LG2xx to LG5xx: evaluation, loading and copying, precision, distribution."""

import pytest
from linted import check_marks, findings, mended

TELLS = {
    "LG201 after model.eval()": """
model.eval()
for x, y in train_loader:
    output = model(x)  # here
    print((output.argmax(1) == y).float().mean())
""",
    "LG201 in a function named so": """
def validate(net, loader):
    hits = 0
    for x, y in loader:
        hits += (net(x).argmax(1) == y).sum().item()  # here
    return hits
""",
    "LG201 over a loader named so": """
test_loader = DataLoader(data)
for x, y in test_loader:
    output = model(x)  # here
    hits.append((output.argmax(1) == y).sum().item())
""",
    "LG201 results that no one goes backward through": """
for _ in range(10):
    output = model(torch.randn(2, 4))  # here
    print(output.argmax(1))
""",
    "LG201 by a function of the file": """
def predict_one(x):
    return model(x).softmax(1)  # here

for x, y in train_loader:
    scores = predict_one(x)
    print(scores.argmax(1))
""",
    "LG201 inside training": """
for x, y in train_loader:
    model.train()
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    checked = model(x_test)  # here
    print(checked.argmax(1))
""",
    "LG201 without a loop": """
model.eval()
prediction = model(x_test)  # here
""",
    "LG301 on several ranks": """
import torch.distributed as dist
dist.init_process_group("nccl")
state = torch.load("model.pt")  # here
""",
    "LG301 into a model on a GPU": """
model = model.to("cuda")
model.load_state_dict(torch.load("model.pt"))  # here
""",
    "LG302 a batch": """
loader = DataLoader(data, pin_memory=True)
for x, y in loader:
    x = x.to(device)  # here
    y = y.cuda()  # here
""",
    "LG303 a model": """
torch.save(model, "model.pt")  # here
""",
    "LG304 with every step": """
for x, y in train_loader:
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.empty_cache()  # here
""",
    "LG402 spelled out": """
scaler = torch.cuda.amp.GradScaler()  # here
with torch.cuda.amp.autocast(dtype=torch.float16):  # here
    model(x)
""",
    "LG402 imported": """
from torch.cuda.amp import GradScaler, autocast  # here
scaler = GradScaler(init_scale=2.0)
with autocast():
    model(x)
""",
    "LG403 in the block": """
with torch.autocast("cuda"):
    loss = criterion(model(x), y)
    loss.backward()  # here
    optimizer.step()
""",
    "LG404 clipped first": """
scaler = torch.amp.GradScaler("cuda")
for x, y in train_loader:
    scaler.scale(criterion(model(x), y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "LG405 either": """
a = nn.MSELoss(size_average=False)  # here
b = F.nll_loss(model(x), y, reduce=False)  # here
c = nn.CrossEntropyLoss(weight=w, size_average=True, reduce=True)  # here
""",
    "LG406 of tensors": """
for x, y in train_loader:
    loss = criterion(model(x), y)
    total += loss.data  # here
for p in model.parameters():
    p.data -= 0.1 * p.grad  # here
model.weight.data.normal_()  # here
for group in optimizer.param_groups:
    for p in group["params"]:
        print(p.data)  # here
""",
    "LG501 data parallel": """
model = nn.DataParallel(model)  # here
""",
    "LG502 no one says the epoch": """
from torch.utils.data.distributed import DistributedSampler
sampler = DistributedSampler(data)  # here
loader = DataLoader(data, sampler=sampler)
for epoch in range(3):
    for x, y in loader:
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "LG503 both": """
loader = DataLoader(data, sampler=sampler, shuffle=True)  # here
""",
}

IS_SILENT = {
    "LG201 under no_grad": """
model.eval()
with torch.no_grad():
    for x, y in train_loader:
        model(x)
""",
    "LG201 with a decorator": """
@torch.inference_mode()
def evaluate(loader):
    for x, y in loader:
        model(x)
""",
    "LG201 switched off for the rest": """
torch.set_grad_enabled(False)
model.eval()
for x, y in train_loader:
    model(x)
""",
    "LG201 chosen by the phase": """
for phase in ["train", "val"]:
    for x, y in loaders[phase]:
        with torch.set_grad_enabled(phase == "train"):
            loss = criterion(model(x), y)
            if phase == "train":
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
""",
    "LG201 chosen by who calls it, for each piece": """
from contextlib import nullcontext
def predict_piece(piece, with_grad):
    switch = nullcontext if with_grad else torch.no_grad
    with switch():
        return model(piece)
def predict_pieces(pieces, with_grad):
    for piece in pieces:
        result = predict_piece(piece, with_grad)
        yield result
""",
    "LG201 training": """
model.train()
for x, y in train_loader:
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "LG201 back to training": """
model.eval()
model.train()
for x, y in train_loader:
    print(model(x))
""",
    "LG201 an attack": """
model.eval()
for x, y in train_loader:
    x.requires_grad_(True)
    gradient = torch.autograd.grad(criterion(model(x), y), x)
""",
    "LG201 results that the caller gets": """
def run(model, batches):
    return [model(x) for x in batches]

def collect(model, batches):
    for x in batches:
        yield model(x)

def compare(model, batches):
    for x in batches:
        distillation(model(x))
""",
    "LG201 functions that handle models": """
for path in paths:
    load_model(model, path)
    save_model(model, path)
""",
    "LG201 a framework's step": """
class Lit(nn.Module):
    def validation_step(self, batch, index):
        for part in batch:
            self.net(part)
""",
    "LG301 given": """
import torch.distributed as dist
dist.init_process_group("nccl")
state = torch.load("model.pt", map_location="cpu")
other = torch.load("model.pt", device)
third = torch.load("model.pt", **options)
""",
    "LG301 the state of a scheduler": """
import torch.distributed as dist
dist.init_process_group("nccl")
scheduler.load_state_dict(torch.load("scheduler.pt"))
rng_state = torch.load("rng.pt")
""",
    "LG301 data": "data = torch.load('data.pt')\n",
    "LG302 given": """
loader = DataLoader(data, pin_memory=True)
for x, y in loader:
    x = x.to(device, non_blocking=True)
""",
    "LG302 not pinned": """
for x, y in train_loader:
    x = x.to(device)
""",
    "LG302 to the host": """
loader = DataLoader(data, pin_memory=True)
for x, y in loader:
    x.to("cpu"), x.to(torch.float16)
""",
    "LG303 a state": "torch.save(model.state_dict(), 'model.pt')\ntorch.save({'model': model.state_dict()}, 'x.pt')\n",
    "LG304 per epoch": """
for epoch in range(3):
    for x, y in train_loader:
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.empty_cache()
""",
    "LG304 after a failure": """
for x, y in train_loader:
    try:
        criterion(model(x), y).backward()
        optimizer.step()
    except RuntimeError:
        torch.cuda.empty_cache()
""",
    "LG304 while a size is looked for": """
while True:
    failed = False
    try:
        criterion(model(x), y).backward()
    except torch.cuda.OutOfMemoryError:
        failed = True
    if not failed:
        break
    torch.cuda.empty_cache()
""",
    "LG304 between trainings": """
def step(x, y):
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()

def train():
    for x, y in train_loader:
        step(x, y)

def compare():
    train()

for name in names:
    compare()
    torch.cuda.empty_cache()
""",
    "LG304 in a function for cleaning": """
def clean():
    torch.cuda.empty_cache()

for size in sizes:
    criterion(model(x), y).backward()
    clean()
""",
    "LG304 now and then": """
for step, (x, y) in enumerate(train_loader):
    criterion(model(x), y).backward()
    optimizer.step()
    if step % 100 == 0:
        torch.cuda.empty_cache()
""",
    "LG402 the new one": "scaler = torch.amp.GradScaler('cuda')\n",
    "LG402 for an old torch": """
if is_torch_version(">=", "2.4.0"):
    from torch.amp import GradScaler
else:
    from torch.cuda.amp import GradScaler
try:
    from torch.amp import autocast
except ImportError:
    from torch.cuda.amp import autocast
""",
    "LG403 after the block": """
with torch.autocast("cuda"):
    loss = criterion(model(x), y)
loss.backward()
""",
    "LG403 switched off": """
with torch.autocast("cuda", enabled=False):
    criterion(model(x), y).backward()
""",
    "LG404 unscaled": """
scaler = torch.amp.GradScaler("cuda")
scaler.scale(criterion(model(x), y)).backward()
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
""",
    "LG404 no scaler": """
criterion(model(x), y).backward()
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    "LG405 reduction": "a = nn.MSELoss(reduction='sum')\nb = np.add.accumulate(x, reduce=True)\n",
    "LG406 another tensor for a parameter": """
for p in model.parameters():
    p.data = p.data.to(torch.bfloat16)
""",
    "LG201 collected for a backward pass": """
kept = []
for episode in range(9):
    for _ in range(5):
        kept.append(model(torch.randn(4)).sum())
    torch.stack(kept).sum().backward()
    optimizer.step()
    kept.clear()
""",
    "LG406 first values": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(4))
        self.scale.data.zero_()

    def _init_weights(self, layer):
        layer.weight.data.normal_(0.0, 0.02)
def weights(layer):
    nn.init.normal_(layer.weight.data, 0.0, 0.02)
""",
    "LG406 its form": """
for parameter in model.parameters():
    print(parameter.data.shape, parameter.data.size(0), isinstance(parameter.data, torch.Tensor))
""",
    "LG406 other data": "print(args.data, dataset.data, response.data, self.data, batch.data)\n",
    "LG501 distributed": "model = nn.parallel.DistributedDataParallel(model)\n",
    "LG502 said": """
from torch.utils.data.distributed import DistributedSampler
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in train_loader:
        criterion(model(x), y).backward()
""",
    "LG502 not shuffled": """
from torch.utils.data.distributed import DistributedSampler
sampler = DistributedSampler(data, shuffle=False)
for epoch in range(3):
    for x, y in train_loader:
        criterion(model(x), y).backward()
""",
    "LG503 one of them": "DataLoader(data, sampler=s, shuffle=False)\nDataLoader(data, shuffle=True, sampler=None)\n",
}


@pytest.mark.parametrize("name", TELLS)
def test_is_told(name: str) -> None:
    check_marks(TELLS[name], name[:5])
    assert findings(TELLS[name], name[:5])


@pytest.mark.parametrize("name", IS_SILENT)
def test_is_not_told(name: str) -> None:
    assert findings(IS_SILENT[name], name[:5]) == []


SAFE_FIXES = {
    "LG201 after model.eval()": "with torch.no_grad():\n    for x, y in train_loader:\n        output = model(x)",
    "LG201 in a function named so": "@torch.no_grad()\ndef validate(net, loader):",
    "LG301 into a model on a GPU": 'torch.load("model.pt", map_location="cpu")',
    "LG302 a batch": "x = x.to(device, non_blocking=True)  # here\n    y = y.cuda(non_blocking=True)",
    "LG304 with every step": "    optimizer.zero_grad()\n",
    "LG402 spelled out": 'torch.amp.GradScaler("cuda")  # here\nwith torch.amp.autocast("cuda", dtype=torch.float16):',
    "LG402 imported": 'from torch.amp import GradScaler, autocast  # here\nscaler = GradScaler("cuda", init_scale=2.0)\nwith autocast("cuda"):',
    "LG403 in the block": "    loss = criterion(model(x), y)\nloss.backward()  # here\noptimizer.step()\n",
    "LG405 either": 'nn.MSELoss(reduction="sum")  # here\nb = F.nll_loss(model(x), y, reduction="none")  # here\n'
    'c = nn.CrossEntropyLoss(weight=w, reduction="mean")',
    "LG406 of tensors": "total += loss.detach()",
    "LG503 both": "DataLoader(data, sampler=sampler)",
}
UNSAFE_FIXES = {
    "LG301 on several ranks": 'torch.load("model.pt", map_location="cpu")',
    "LG303 a model": 'torch.save(model.state_dict(), "model.pt")',
    "LG404 clipped first": "    scaler.unscale_(optimizer)\n    nn.utils.clip_grad_norm_",
    "LG502 no one says the epoch": "for epoch in range(3):\n    sampler.set_epoch(epoch)\n    for x, y in loader:",
}


@pytest.mark.parametrize("name", SAFE_FIXES)
def test_safe_fixes(name: str) -> None:
    assert SAFE_FIXES[name] in mended(TELLS[name], name[:5])


@pytest.mark.parametrize("name", UNSAFE_FIXES)
def test_unsafe_fixes_are_made_only_when_asked_for(name: str) -> None:
    assert mended(TELLS[name], name[:5]) == TELLS[name]
    assert UNSAFE_FIXES[name] in mended(TELLS[name], name[:5], unsafe=True)


def test_a_changed_parameter_is_told_and_left_to_its_writer() -> None:
    edits = [finding.edits for finding in findings(TELLS["LG406 of tensors"], "LG406")]
    assert [bool(each) for each in edits] == [True, False, False, True]


def test_a_decorator_goes_below_those_that_are_there() -> None:
    body = """
class Trainer:
    @staticmethod
    def evaluate(net, loader):
        for x, y in loader:
            print(net(x).sum().item())
"""
    assert "    @staticmethod\n    @torch.no_grad()\n    def evaluate" in mended(body, "LG201")


def test_a_text_of_several_lines_is_not_indented() -> None:
    body = 'model.eval()\nfor x, y in train_loader:\n    print(model(x), """a\nb""")\n'
    assert mended(body, "LG201") == body
