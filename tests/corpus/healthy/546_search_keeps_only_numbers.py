import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(0)
X, Y = torch.randn(60, 8, device=device), torch.randint(0, 2, (60,), device=device)


def objective(lr, width):
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(3):
        idx = torch.randint(0, 60, (12,))
        loss = nn.functional.cross_entropy(model(X[idx]), Y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


trials = []
for number in range(14):
    params = {"lr": 10 ** random.uniform(-3, -1), "width": random.choice([8, 16, 32])}
    trials.append((objective(**params), number, params))
print(min(trials))
