from collections import OrderedDict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class PositionCache:
    def __init__(self, limit=5):
        self.limit, self.tables = limit, OrderedDict()

    def get(self, length):
        if length in self.tables:
            self.tables.move_to_end(length)
        else:
            self.tables[length] = torch.arange(length, device=device).float() / length
            while len(self.tables) > self.limit:
                self.tables.popitem(last=False)
        return self.tables[length]


cache = PositionCache()
model = nn.Linear(1, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(36):
    positions = cache.get(4 + (step * 7) % 23)
    loss = model(positions[:, None]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
