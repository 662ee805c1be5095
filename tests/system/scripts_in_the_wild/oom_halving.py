"""Halves the batch after an out-of-memory error, caught by its type and by the message of a RuntimeError."""

import gc

import torch
import torch.nn as nn

torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Sequential(
    nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch):
    x = torch.zeros(batch, 1024, device=device)
    optimizer.zero_grad()
    loss = (model(x) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


batch, tried = 8192, []
while True:
    out_of_memory = False
    try:
        loss = step(batch)
    except torch.cuda.OutOfMemoryError as error:
        out_of_memory = True
        assert "Tried to allocate" in str(error)
    if not out_of_memory:
        break
    tried.append(batch)
    gc.collect()
    torch.cuda.empty_cache()
    batch //= 2
print("memory: fits", batch, "after", tried, "allocated", torch.cuda.memory_allocated())
assert torch.cuda.memory_allocated() < 40 * 2**20 or not torch.cuda.memory_allocated()

kept = []
try:
    while len(kept) < 100:
        kept.append(torch.empty(16 * 2**20, dtype=torch.uint8, device=device))
    print("memory: never full")
except RuntimeError as e:
    if "out of memory" in str(e):
        print("memory: ran out after", len(kept), "MiB*16", str(e)[:40])
    else:
        raise
kept.clear()
torch.cuda.empty_cache()
print("memory:", torch.cuda.memory_reserved())
for _ in range(2):
    print(step(256))

oom = False  # a common snippet from tutorials


def run_model(batch_size):
    return step(batch_size)


try:
    run_model(65536 if torch.cuda.mem_get_info()[1] < 2**30 else 8)
except RuntimeError:  # Out of memory
    oom = True
if oom:
    for _ in range(2):
        run_model(1)
print("memory: notes' snippet met an OOM:", oom)
