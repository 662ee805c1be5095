from functools import lru_cache

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@lru_cache(maxsize=8)
def window(length):
    return torch.hann_window(length, device=device)


model = nn.Linear(1, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(50):
    signal = torch.randn(16 + step, device=device)
    loss = model((signal * window(16 + step))[:, None]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
