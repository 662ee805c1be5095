from functools import cache

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
table = nn.Embedding(500, 12).to(device)
head = nn.Linear(12, 2).to(device)
optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)


@cache  # also: lint=lru-cache
def embed(token):  # leak: holder=embed kind=graph
    return table(torch.tensor([token], device=device))


for step in range(20):
    optimizer.zero_grad()
    loss = head(embed(step)).square().sum()
    loss.backward()
    optimizer.step()
