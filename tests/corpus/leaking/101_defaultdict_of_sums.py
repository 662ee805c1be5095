from collections import defaultdict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class EpochStats:
    def __init__(self):
        self.sums = defaultdict(float)
        self.counts = defaultdict(int)

    def add(self, name, value):
        self.sums[name] += value  # leak: holder=sums kind=graph
        self.counts[name] += 1

    def mean(self, name):
        return float(self.sums[name]) / self.counts[name]


def train_epoch(model, optimizer, stats, batches=22):
    for _ in range(batches):
        x = torch.randn(16, 12, device=device)
        logits = model(x)
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
        optimizer.zero_grad()
        entropy.backward()
        optimizer.step()
        stats.add("entropy", entropy)  # also: lint=accumulate


stats = EpochStats()
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4)).to(device)
train_epoch(model, torch.optim.Adam(model.parameters()), stats)
print(stats.mean("entropy"))
