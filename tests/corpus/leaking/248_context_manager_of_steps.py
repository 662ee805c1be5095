import contextlib
from types import SimpleNamespace

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Run:
    def __init__(self):
        self.steps = []

    @contextlib.contextmanager
    def step(self):
        record = SimpleNamespace(index=len(self.steps))
        yield record
        self.steps.append(record)  # leak: holder=steps kind=graph


run = Run()
model = nn.Linear(7, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    with run.step() as record:
        x, y = torch.randn(5, 7, device=device), torch.randint(0, 2, (5,), device=device)
        record.loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        record.loss.backward()
        optimizer.step()
print(len(run.steps))
