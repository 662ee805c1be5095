from collections import defaultdict, deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SmoothedValue:
    def __init__(self, window=20):
        self.deque, self.total, self.count = deque(maxlen=window), 0.0, 0

    def update(self, value, n=1):
        if isinstance(value, torch.Tensor):
            value = value.item()
        self.deque.append(value)
        self.total += value * n
        self.count += n


meters = defaultdict(SmoothedValue)
model = nn.Linear(6, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    loss = model(torch.randn(9, 6, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    meters["loss"].update(loss)
