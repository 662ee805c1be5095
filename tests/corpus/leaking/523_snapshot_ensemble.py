import copy
import math

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def cosine_lr(step, cycle, base=0.1):
    return base / 2 * (math.cos(math.pi * (step % cycle) / cycle) + 1)


def train_se(model, cycles, steps_per_cycle):
    """Train a snapshot ensemble: one training run yields several models."""
    snapshots = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(cycles * steps_per_cycle):
        for group in optimizer.param_groups:
            group["lr"] = cosine_lr(step, steps_per_cycle)
        x, y = torch.randn(8, 12, device=device), torch.randint(0, 3, (8,), device=device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if (step + 1) % steps_per_cycle == 0:
            snapshots.append(copy.deepcopy(model))  # leak: holder=snapshots kind=tensor
    return snapshots


models = train_se(nn.Sequential(nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 3)).to(device), cycles=30, steps_per_cycle=2)
print(len(models), "snapshots")
