import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(0)
X, Y = torch.randn(60, 8, device=device), torch.randint(0, 2, (60,), device=device)


def train_candidate(lr, width, steps=3):
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        idx = torch.randint(0, 60, (12,))
        loss = nn.functional.cross_entropy(model(X[idx]), Y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, loss.item()


results = []
for trial in range(24):
    params = {"lr": 10 ** random.uniform(-3, -1), "width": random.choice([8, 16, 32])}
    model, final = train_candidate(**params)
    results.append({"params": params, "loss": final, "model": model})  # leak: holder=results kind=tensor
best = min(results, key=lambda r: r["loss"])
print(best["params"], best["loss"])
