import heapq
import itertools

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
tie = itertools.count()


class Hardest:
    """The hardest few examples."""

    def __init__(self, size=6):
        self.size, self.heap = size, []

    def offer(self, x, losses):
        for row, value in zip(x, losses.tolist()):
            heapq.heappush(self.heap, (value, next(tie), row.clone()))
            if len(self.heap) > self.size:
                heapq.heappop(self.heap)


hardest = Hardest()
model = nn.Linear(7, 1).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(30):
    x = torch.randn(8, 7, device=device)
    losses = (model(x).squeeze(1) - x.norm(dim=1)).square()
    optimizer.zero_grad()
    losses.mean().backward()
    optimizer.step()
    hardest.offer(x, losses.detach())
