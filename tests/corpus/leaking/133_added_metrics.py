from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Metrics:
    loss: torch.Tensor | float = 0.0
    count: int = 0

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(self.loss + other.loss, self.count + other.count)


def train_step(model, optimizer, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return Metrics(loss, len(x))


model = nn.Linear(8, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
epoch = Metrics()
for step in range(22):
    x, y = torch.randn(10, 8, device=device), torch.randint(0, 3, (10,), device=device)
    epoch = epoch + train_step(model, optimizer, x, y)  # leak: holder=epoch|loss kind=graph
print(float(epoch.loss) / epoch.count)
