import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def make_step(model, optimizer):
    total, last = 0.0, None

    def step(x):
        nonlocal total, last
        last = model(x).square().mean()
        optimizer.zero_grad()
        last.backward()
        optimizer.step()
        total += last.item()
        return total

    return step


model = nn.Linear(6, 1).to(device)
step = make_step(model, torch.optim.SGD(model.parameters(), lr=0.01))
curve = [step(torch.randn(8, 6, device=device)) for _ in range(26)]
