import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Buffer:
    """Collects transitions until the learner takes all of them."""

    def __init__(self):
        self.items = []

    def add(self, *item):
        self.items.append(item)

    def drain(self):
        taken, self.items = self.items, []
        return map(torch.stack, zip(*taken))


q = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
buffer = Buffer()
for cycle in range(22):
    for _ in range(random.randint(3, 6)):
        obs = torch.randn(4, device=device)
        buffer.add(obs, torch.rand((), device=device), torch.randn(4, device=device))
    obs, reward, following = buffer.drain()
    with torch.no_grad():
        target = reward + 0.9 * q(following).amax(1)
    loss = (q(obs).amax(1) - target).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
