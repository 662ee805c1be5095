import random
from functools import lru_cache

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@lru_cache(maxsize=16)
def causal_mask(length):
    return torch.triu(torch.full((length, length), float("-inf"), device=device), diagonal=1)


random.seed(0)
layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(device)
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
for step in range(36):
    length = random.choice((4, 6, 8))
    x = torch.randn(2, length, 8, device=device)
    loss = (layer(x, src_mask=causal_mask(length)) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
