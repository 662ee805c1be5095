import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class DeviceMeter:
    """Accumulates the sum on the device, so that no step waits for the GPU."""

    def __init__(self):
        self.total = torch.zeros((), device=device)
        self.count = 0

    def update(self, value, n=1):
        self.total += value.detach() * n
        self.count += n

    def compute(self):
        return (self.total / self.count).item()


model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
meter = DeviceMeter()
for step in range(28):
    x = torch.randn(8, 10, device=device)
    loss = (model(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    meter.update(loss, len(x))
print(meter.compute())
