import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Prioritized:
    MAX = 50_000

    def __init__(self):
        self.entries = []

    def add(self, transition, td_error):
        self.entries.append((td_error, transition))  # leak: holder=entries kind=graph|tensor
        if len(self.entries) > self.MAX:
            self.entries.pop(0)


q = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 2)).to(device)
optimizer = torch.optim.RMSprop(q.parameters(), lr=1e-3)
buffer = Prioritized()
for step in range(50):
    state = torch.randn(1, 5, device=device)
    value = q(state).max()
    target = torch.rand((), device=device)
    buffer.add(state, (value - target).abs())
    loss = (value - target).square()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
