import random
from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
network = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
buffer = deque(maxlen=25)
for step in range(50):
    state = torch.randn(6, device=device)
    buffer.append((state, torch.rand(3, device=device)))
    batch = random.choices(buffer, k=4)
    states = torch.stack([s for s, _ in batch])
    targets = torch.stack([t for _, t in batch])
    loss = nn.functional.mse_loss(network(states), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
