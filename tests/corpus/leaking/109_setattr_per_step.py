import torch
from torch import nn


class Recorder:
    """Stores values as attributes."""

    def record(self, name, value):
        setattr(self, name, value)  # leak: holder=recorder kind=graph


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recorder = Recorder()
    model = nn.Sequential(nn.Linear(5, 10), nn.GELU(), nn.Linear(10, 5)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        x = torch.rand(7, 5, device=device)
        reconstruction = model(x)
        loss = (reconstruction - x).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.record(f"loss_{step}", loss)  # also: lint=accumulate


main()
