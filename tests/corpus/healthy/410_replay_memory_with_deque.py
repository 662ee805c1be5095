import random
from collections import deque, namedtuple

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


policy_net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-4)
memory = ReplayMemory(12)
state = torch.randn(1, 6, device=device)
for step in range(70):
    with torch.no_grad():
        action = policy_net(state).argmax(1, keepdim=True)
    next_state = torch.randn(1, 6, device=device)
    memory.push(state, action, next_state, torch.rand(1, device=device))
    state = next_state
    if len(memory) < 6:
        continue
    batch = Transition(*zip(*memory.sample(6)))
    values = policy_net(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    with torch.no_grad():
        expected = policy_net(torch.cat(batch.next_state)).max(1).values * 0.9 + torch.cat(batch.reward)
    loss = nn.functional.smooth_l1_loss(values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
