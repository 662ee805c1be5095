from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def prefetch(batches, depth=3):
    ahead = deque()
    for batch in batches:
        ahead.append(batch.to(device))
        if len(ahead) >= depth:
            yield ahead.popleft()
    while ahead:
        yield ahead.popleft()


model = nn.Linear(10, 10).to(device)
optimizer = torch.optim.Adam(model.parameters())
for x in prefetch(torch.randn(4, 10) for _ in range(50)):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
