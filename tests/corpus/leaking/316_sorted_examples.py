import bisect

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Curriculum:
    """All examples, sorted by difficulty."""

    def __init__(self):
        self.difficulties, self.examples = [], []

    def insert(self, difficulty, example):
        at = bisect.bisect(self.difficulties, difficulty)
        self.difficulties.insert(at, difficulty)
        self.examples.insert(at, example)  # leak: holder=examples kind=tensor


curriculum = Curriculum()
model = nn.Linear(12, 1).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(26):
    x = torch.randn(12, device=device)
    loss = (model(x) - x.norm()).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    curriculum.insert(loss.item(), x)
