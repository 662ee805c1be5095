import torch
from torch import nn
import torch.nn.functional as F


def train(model, optimizer, batches, device):
    losses = []
    for step in range(batches):
        x = torch.randn(32, 1, 12, 12, device=device)
        y = torch.randint(0, 10, (32,), device=device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)  # leak: holder=losses kind=graph lint=accumulate
    return sum(losses) / len(losses)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 10)).to(device)
opt = torch.optim.Adam(net.parameters())
print("mean loss", train(net, opt, 20, device).item())
