import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Slots:
    def __init__(self, capacity=10):
        self.items = [None] * capacity
        self.priority = torch.zeros(capacity)
        self.next = 0

    def add(self, item, priority):
        at = self.next % len(self.items)
        self.items[at] = item
        self.priority[at] = priority
        self.next += 1

    def sample(self, k):
        chosen = torch.multinomial(self.priority + 1e-6, k, replacement=True).tolist()
        return [self.items[i] for i in chosen if self.items[i] is not None] or [random.choice(self.items[: self.next])]


slots = Slots()
net = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 1)).to(device)
optimizer = torch.optim.Adam(net.parameters())
for step in range(40):
    state = torch.randn(5, device=device)
    slots.add(state, abs(state.sum().item()))
    batch = torch.stack(slots.sample(4))
    loss = (net(batch).squeeze(1) - batch.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
