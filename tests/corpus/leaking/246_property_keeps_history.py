import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Monitor:
    def __init__(self):
        self._values = []

    @property
    def loss(self):
        return self._values[-1]

    @loss.setter
    def loss(self, value):
        self._values.append(value)  # leak: holder=_values kind=graph


monitor = Monitor()
model = nn.Sequential(nn.Linear(11, 11), nn.ReLU(), nn.Linear(11, 1)).to(device)
optimizer = torch.optim.RMSprop(model.parameters())
for step in range(20):
    monitor.loss = model(torch.randn(4, 11, device=device)).abs().mean()  # also: lint=accumulate
    optimizer.zero_grad()
    monitor.loss.backward()
    optimizer.step()
