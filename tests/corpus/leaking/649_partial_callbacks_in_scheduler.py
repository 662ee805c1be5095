from functools import partial

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Scheduler:
    def __init__(self):
        self.jobs = []

    def later(self, function, *args):
        self.jobs.append(partial(function, *args))  # leak: holder=jobs kind=tensor


scheduler = Scheduler()
net = nn.Linear(10, 10).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(40):
    x = torch.randn(8, 10, device=device)
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.later(torch.save, x)
