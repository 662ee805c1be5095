from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SmoothedValue:
    def __init__(self, window_size=6):
        self.deque = deque(maxlen=window_size)
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.deque.append(value)
        self.count += 1
        self.total += float(value)

    @property
    def median(self):
        return torch.stack(list(self.deque)).median().item()


model = nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.Linear(18, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loss_meter = SmoothedValue()
for step in range(36):
    loss = model(torch.randn(6, 9, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss_meter.update(loss.detach())
print(loss_meter.median)
