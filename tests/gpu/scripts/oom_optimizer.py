"""Runs out of memory because Adam's state does not fit in addition to weights and gradients. The script then continues
with SGD."""

import torch
from torch import nn

LIMIT = 1 << 30
torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.get_device_properties(0).total_memory)

model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(5)]).cuda()
optimizer = torch.optim.Adam(model.parameters())


def step() -> None:
    loss = model(torch.randn(64, 4096, device="cuda")).mean()
    loss.backward()
    optimizer.step()  # <- runs out
    optimizer.zero_grad()


caught = False
try:
    step()
except torch.OutOfMemoryError:
    caught = True
if caught:
    optimizer.state.clear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        step()
    print("continued")
