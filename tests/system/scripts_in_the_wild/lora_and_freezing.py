"""Handwritten LoRA on a frozen half-precision model, shared weights, replaced parameters, meta initialization, host
offload."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = torch.device("cuda")


class LoRALinear(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.empty(rank, base.in_features, device=base.weight.device))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + (x.to(self.a.dtype) @ self.a.t() @ self.b.t()).to(x.dtype)


base = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)).to(
    device, torch.bfloat16
)
for name, module in list(base.named_children()):
    if isinstance(module, nn.Linear):
        setattr(base, name, LoRALinear(module))
trainable = [p for p in base.parameters() if p.requires_grad]
print(
    len(trainable),
    sum(p.numel() for p in base.parameters()),
    {p.device.type == device.type for p in base.parameters()},
)
optimizer = torch.optim.AdamW(trainable, lr=1e-2)
before = torch.cuda.memory_allocated()
for step in range(3):
    x, y = torch.randn(8, 16).to(device, torch.bfloat16), torch.randint(0, 4, (8,)).to(device)
    loss = F.cross_entropy(base(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
print("memory:", torch.cuda.memory_allocated() - before)

# Layers stay on the host and are moved to the device one at a time.
layers = [nn.Linear(16, 16) for _ in range(3)]
x = torch.randn(2, 16, device=device)
with torch.no_grad():
    for layer in layers:
        layer.to(device)
        x = torch.relu(layer(x))
        layer.to("cpu")
print(x.sum().item(), {p.device.type for layer in layers for p in layer.parameters()})

# Optimizer state moved by hand, as offloading scripts do.
for state in optimizer.state.values():
    for key, value in state.items():
        if torch.is_tensor(value):
            state[key] = value.cpu()
for state in optimizer.state.values():
    for key, value in state.items():
        if torch.is_tensor(value) and value.dim():
            state[key] = value.to(device)
optimizer.zero_grad()
F.cross_entropy(
    base(torch.ones(2, 16, device=device, dtype=torch.bfloat16)).float(),
    torch.zeros(2, dtype=torch.long, device=device),
).backward()
optimizer.step()
print(sum(p.double().sum().item() for p in trainable))
with torch.device("meta"):
    skeleton = nn.Linear(16, 16)
skeleton.load_state_dict({k: v.to(device) for k, v in layers[0].state_dict().items()}, assign=True)
print(skeleton(torch.ones(1, 16, device=device)).sum().item(), skeleton.weight.device.type == device.type)
