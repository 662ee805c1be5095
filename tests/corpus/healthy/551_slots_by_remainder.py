import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS = 5
model = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
snapshots = {}
for step in range(45):
    x = torch.randn(6, 8, device=device)
    loss = (model(x) - x).abs().mean()
    if len(snapshots) == SLOTS:
        oldest = snapshots[step % SLOTS]
        loss = loss + 1e-3 * (model.weight - oldest).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    snapshots[step % SLOTS] = model.weight.detach().clone()
