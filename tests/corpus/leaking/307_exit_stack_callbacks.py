import contextlib

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def report(step, loss):
    print(f"step {step}: {loss.item():.3f}")


def main():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with contextlib.ExitStack() as at_end:
        for step in range(20):
            loss = model(torch.randn(6, 8, device=device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            at_end.callback(report, step, loss)  # leak: holder=at_end kind=graph lint=accumulate


main()
