import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def log_loss(loss, history=[]):
    history.append(loss)  # leak: holder=history|log_loss|__defaults__ kind=graph
    recent = history[-10:]
    return sum(l.item() for l in recent) / len(recent)


model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for i in range(24):
    x = torch.randn(10, 4, device=device)
    loss = (model(x) - x[:, :1].sin()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = log_loss(loss)  # also: lint=accumulate
