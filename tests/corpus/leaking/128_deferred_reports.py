import functools

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def report(step, loss):
    print(f"{step:4d} {loss.item():.4f}")


def main():
    model = nn.Sequential(nn.Linear(10, 10), nn.Mish(), nn.Linear(10, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    at_exit = []
    for step in range(20):
        x = torch.randn(8, 10, device=device)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        at_exit.append(functools.partial(report, step, loss))  # leak: holder=at_exit kind=graph lint=accumulate
    for call in at_exit:
        call()


main()
