from collections import Counter

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
totals = Counter()


def train_batch(model, optimizer, x, y):
    logits = model(x)
    losses = {"ce": nn.functional.cross_entropy(logits, y), "reg": logits.square().mean()}
    optimizer.zero_grad()
    sum(losses.values()).backward()
    optimizer.step()
    totals.update(losses)  # leak: holder=totals kind=graph lint=accumulate


model = nn.Linear(10, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(22):
    train_batch(model, optimizer, torch.randn(6, 10, device=device), torch.randint(0, 4, (6,), device=device))
print({name: float(value) for name, value in totals.items()})
