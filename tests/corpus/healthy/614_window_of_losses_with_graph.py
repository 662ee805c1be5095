from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(10, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
recent = deque(maxlen=16)
for step in range(60):
    loss = model(torch.randn(8, 10, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    recent.append(loss)
    if step % 10 == 9:
        print(torch.stack(list(recent)).mean().item())
