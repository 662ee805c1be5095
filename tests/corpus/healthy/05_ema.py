import copy

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 1)).to(device)
ema = copy.deepcopy(model)
for parameter in ema.parameters():
    parameter.requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
running_loss = None
for step in range(40):
    x = torch.randn(20, 10, device=device)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.mul_(0.99).add_(fast, alpha=0.01)
        running_loss = loss.detach() if running_loss is None else 0.9 * running_loss + 0.1 * loss.detach()
print(running_loss.item())
