from functools import lru_cache

import torch
from torch import nn


class PositionBias(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(heads, 1, 1))

    @lru_cache(maxsize=None)  # also: lint=lru-cache
    def bias(self, length, step):  # leak: holder=bias kind=graph
        positions = torch.arange(length, device=self.scale.device, dtype=torch.float32)
        return self.scale * (positions[:, None] - positions[None, :]).abs()

    def forward(self, scores, step):
        return scores + self.bias(scores.shape[-1], step)


device = "cuda" if torch.cuda.is_available() else "cpu"
module = PositionBias().to(device)
optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
for step in range(20):
    scores = torch.randn(2, 4, 16, 16, device=device)
    loss = module(scores, step).softmax(-1).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
