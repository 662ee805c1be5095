from collections import defaultdict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def train_batch(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"loss is {loss.item()}")
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    problems = defaultdict(list)
    for step in range(45):
        x = torch.randn(16, 4, device=device)
        y = torch.randn(16, 1, device=device)
        if step % 2:
            y[0] = float("nan")  # broken sensors
        try:
            train_batch(model, optimizer, x, y)
        except (FloatingPointError, ValueError) as exc:
            problems[type(exc).__name__].append(exc)  # leak: holder=problems kind=graph lint=stored-exception
    print({name: len(found) for name, found in problems.items()})


main()
