import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def train_step(model, optimizer, x):
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def train_epoch(model, optimizer, batches):
    losses = [train_step(model, optimizer, x) for x in batches]  # leak: holder=losses|comprehension|listcomp kind=graph lint=accumulate
    return torch.stack(losses).mean()


model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print(train_epoch(model, optimizer, torch.randn(24, 8, 6, device=device)).item())
