import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Shuffled(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        buffer = []
        for i in range(self.length):
            buffer.append(torch.randn(8))  # leak: holder=buffer kind=tensor
            if i >= 4:
                yield random.choice(buffer)


model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Shuffled(160), batch_size=6):
    loss = model(x.to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
