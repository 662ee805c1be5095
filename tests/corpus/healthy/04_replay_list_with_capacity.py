import random

import torch
from torch import nn


class ReplayMemory:
    def __init__(self, capacity):
        self.capacity = capacity
        self.memory = []
        self.position = 0

    def push(self, *transition):
        if len(self.memory) < self.capacity:
            self.memory.append(None)
        self.memory[self.position] = transition
        self.position = (self.position + 1) % self.capacity

    def sample(self, size):
        return random.choices(self.memory, k=size)


device = "cuda" if torch.cuda.is_available() else "cpu"
memory = ReplayMemory(30)
network = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
for step in range(60):
    memory.push(torch.randn(5, device=device), torch.rand(2, device=device))
    states, targets = zip(*memory.sample(4))
    loss = nn.functional.mse_loss(network(torch.stack(states)), torch.stack(targets))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
