"""Retains the features of every batch, which keep the autograd graph of that batch alive."""

import torch
from torch import nn

device = torch.device("cuda")
features = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(device)
head = nn.Linear(1024, 10).to(device)
optimizer = torch.optim.SGD([*features.parameters(), *head.parameters()], lr=0.01)
history = []
for _ in range(12):
    x = torch.randn(512, 1024, device=device)
    kept = features(x)  # <- allocates
    loss = head(kept).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(kept)  # <- keeps
print(f"kept {len(history)}")
