from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Tracker(nn.Module):
    """Tracks an object and keeps its last four belief states."""

    def __init__(self, width=10):
        super().__init__()
        self.cell = nn.GRUCell(3, width)
        self.beliefs = deque([torch.zeros(1, width, device=device)], maxlen=4)

    def forward(self, measurement):
        belief = self.cell(measurement, self.beliefs[-1])
        self.beliefs.append(belief)  # leak: holder=beliefs kind=graph lint=hidden-state
        return torch.stack(tuple(self.beliefs)).mean(0)


tracker = Tracker().to(device)
readout = nn.Linear(10, 3).to(device)
optimizer = torch.optim.Adam(readout.parameters())
for frame in range(20):
    measurement = torch.randn(1, 3, device=device)
    loss = (readout(tracker(measurement).detach()) - measurement).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
