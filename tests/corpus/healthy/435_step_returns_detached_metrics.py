import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def train_step(model, optimizer, x, y):
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss.detach(), "accuracy": (logits.argmax(1) == y).float().mean()}


def train_epoch(model, optimizer, steps=7):
    metrics = [
        train_step(model, optimizer, torch.randn(9, 6, device=device), torch.randint(0, 3, (9,), device=device))
        for _ in range(steps)
    ]
    return {key: torch.stack([m[key] for m in metrics]).mean().item() for key in metrics[0]}


net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
optimizer = torch.optim.Adam(net.parameters())
for epoch in range(5):
    print(epoch, train_epoch(net, optimizer))
