import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def gradient_norm(parameters):
    return torch.stack([p.grad.norm() for p in parameters]).norm()


def run(steps):
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logs = {"grad_norm": []}
    for _ in range(steps):
        x, y = torch.randn(6, 12, device=device), torch.randint(0, 2, (6,), device=device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        logs["grad_norm"].append(gradient_norm(model.parameters()))  # leak: holder=logs kind=tensor
        optimizer.step()
    return logs


print(len(run(24)["grad_norm"]))
