import gc

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Sample:
    def __init__(self, data):
        self.data = data
        self.view = View(self)


class View:
    def __init__(self, sample):
        self.sample = sample

    def mean(self):
        return self.sample.data.mean()


model = nn.Linear(10, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(32):
    sample = Sample(torch.randn(6, 10, device=device))
    loss = (model(sample.data) - sample.view.mean()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        gc.collect()
