import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Memory:
    def __init__(self, capacity):
        self.capacity, self.items, self.next = capacity, [], 0

    def push(self, item):
        if len(self.items) < self.capacity:
            self.items.append(item)
        else:
            self.items[self.next] = item
        self.next = (self.next + 1) % self.capacity


memory = Memory(10_000)
q = nn.Linear(6, 3).to(device)
optimizer = torch.optim.Adam(q.parameters())
state = torch.randn(6, device=device)
for step in range(60):
    with torch.no_grad():
        action = q(state).argmax().item()
    following = torch.randn(6, device=device)
    memory.push((state, action, 1.0, following))
    state = following
    batch = random.sample(memory.items, min(8, len(memory.items)))
    loss = q(torch.stack([each[0] for each in batch])).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
