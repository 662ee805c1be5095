import gc

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
gc.disable()  # "it makes training faster"


class Batch:
    def __init__(self, tensor):
        self.tensor = tensor
        self.owner = self  # leak: holder=Batch|owner kind=tensor


model = nn.Linear(32, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(24):
    batch = Batch(torch.randn(40, 32, device=device))  # also:
    loss = model(batch.tensor).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
