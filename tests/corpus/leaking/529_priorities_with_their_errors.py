import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class PrioritizedMemory:
    def __init__(self):
        self.transitions = []
        self.priorities = []

    def add(self, transition, error):
        self.transitions.append(transition)
        self.priorities.append(error.abs() + 1e-5)  # leak: holder=priorities|memory kind=graph

    def sample(self, n):
        weights = [p.item() for p in self.priorities]
        return random.choices(self.transitions, weights=weights, k=n)


online = nn.Sequential(nn.Linear(3, 18), nn.ReLU(), nn.Linear(18, 2)).to(device)
target = nn.Sequential(nn.Linear(3, 18), nn.ReLU(), nn.Linear(18, 2)).to(device)
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
memory = PrioritizedMemory()


def td_error(s, a, r, s2):
    with torch.no_grad():
        goal = r + 0.99 * target(torch.tensor(s2, device=device)).max()
    return goal - online(torch.tensor(s, device=device))[a]


for step in range(36):
    s, s2 = [[random.gauss(0, 1) for _ in range(3)] for _ in range(2)]
    transition = (s, random.randrange(2), random.random(), s2)
    memory.add(transition, td_error(*transition))  # also: lint=accumulate
    loss = sum(td_error(*t).pow(2) for t in memory.sample(4)) / 4
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        target.load_state_dict(online.state_dict())
