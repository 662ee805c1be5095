import functools

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@functools.cache  # also: lint=lru-cache
def positional_encoding(length, dim, seed):  # leak: holder=positional_encoding kind=tensor
    torch.manual_seed(seed)
    return torch.randn(length, dim, device=device)


model = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(24):
    x = torch.randn(2, 12, 8, device=device) + positional_encoding(12, 8, step)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
