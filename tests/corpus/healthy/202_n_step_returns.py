from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class NStep:
    def __init__(self, n=4, gamma=0.9):
        self.n, self.gamma, self.pending = n, gamma, deque()

    def push(self, state, reward):
        self.pending.append((state, reward))
        if len(self.pending) < self.n:
            return None
        value = sum(self.gamma**i * r for i, (_, r) in enumerate(self.pending))
        first, _ = self.pending.popleft()
        return first, value


collector = NStep()
critic = nn.Linear(4, 1).to(device)
optimizer = torch.optim.Adam(critic.parameters())
for step in range(30):
    ready = collector.push(torch.randn(4, device=device), 1.0)
    if ready is None:
        continue
    state, value = ready
    loss = (critic(state) - value).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
