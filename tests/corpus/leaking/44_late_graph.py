import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def train():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    best, running = float("inf"), 0.0
    for step in range(80):
        x = torch.randn(20, 8, device=device)
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = min(best, loss.item())
        if step >= 40:
            running = running + loss  # leak: holder=running kind=graph lint=accumulate
    return best, running


train()
