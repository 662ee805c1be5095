import random
from collections import namedtuple

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
Transition = namedtuple("Transition", "state value reward")


class ReplayMemory:
    def __init__(self, capacity):
        self.capacity, self.memory, self.position = capacity, [], 0

    def push(self, *args):
        if len(self.memory) < self.capacity:
            self.memory.append(None)
        self.memory[self.position] = Transition(*args)  # leak: holder=memory kind=graph|tensor
        self.position = (self.position + 1) % self.capacity

    def sample(self, size):
        return random.sample(self.memory, size)


torch.manual_seed(0)
random.seed(0)
critic = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.Adam(critic.parameters())
memory = ReplayMemory(100_000)
for step in range(40):
    state = torch.randn(1, 6, device=device)
    memory.push(state, critic(state), torch.randn(1, 1, device=device))
    batch = memory.sample(min(4, len(memory.memory)))
    states, rewards = torch.cat([b.state for b in batch]), torch.cat([b.reward for b in batch])
    loss = nn.functional.mse_loss(critic(states), rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
