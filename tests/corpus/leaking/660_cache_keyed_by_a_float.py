from functools import lru_cache

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@lru_cache(maxsize=None)  # leak: holder=window kind=tensor
def window(width, sigma):
    return torch.exp(-torch.linspace(-3, 3, width, device=device).square() / sigma)


net = nn.Linear(64, 8).to(device)
optimizer = torch.optim.Adam(net.parameters())
for step in range(60):
    loss = net(torch.randn(8, 64, device=device) * window(64, 1.0 + step / 60)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
