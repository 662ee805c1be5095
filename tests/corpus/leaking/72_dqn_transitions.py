import random
from dataclasses import dataclass

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Transition:
    state: torch.Tensor
    q_value: torch.Tensor
    reward: float


class ReplayMemory:
    def __init__(self):
        self.memory = []

    def push(self, *fields):
        self.memory.append(Transition(*fields))  # leak: holder=memory kind=graph

    def sample(self, count):
        return random.sample(self.memory, count)


policy_net = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3)
memory = ReplayMemory()
for step in range(24):
    state = torch.randn(1, 4, device=device)
    q_value = policy_net(state).max(1).values
    memory.push(state, q_value, 1.0)  # also: lint=accumulate
    batch = memory.sample(min(4, step + 1))
    states = torch.cat([each.state for each in batch])
    rewards = torch.tensor([each.reward for each in batch], device=device)
    loss = nn.functional.smooth_l1_loss(policy_net(states).max(1).values, rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
