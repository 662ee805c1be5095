import random
from collections import namedtuple

import torch
import torch.nn as nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
BATCH_SIZE = 8
GAMMA = 0.95


class ReplayMemory:
    def __init__(self):
        self.memory = []

    def push(self, *args):
        self.memory.append(Transition(*args))  # leak: holder=memory kind=tensor

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


policy_net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-4)
memory = ReplayMemory()


def select_action(state, eps=0.2):
    if random.random() < eps:
        return torch.tensor([[random.randrange(3)]], device=device)
    with torch.no_grad():
        return policy_net(state).max(1).indices.view(1, 1)


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    values = policy_net(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    with torch.no_grad():
        best = policy_net(torch.cat(batch.next_state)).max(1).values
    loss = nn.functional.smooth_l1_loss(values, (best * GAMMA + torch.cat(batch.reward)).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


state = torch.randn(1, 6, device=device)
for step in range(60):
    action = select_action(state)
    next_state = torch.randn(1, 6, device=device)
    memory.push(state, action, next_state, torch.tensor([random.random()], device=device))  # also:
    state = next_state
    optimize_model()
