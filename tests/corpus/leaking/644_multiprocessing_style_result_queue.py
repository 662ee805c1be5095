from queue import LifoQueue

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Worker:
    def __init__(self, results):
        self.results = results
        self.net = nn.Linear(10, 10).to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def work(self, x):
        out = self.net(x)
        loss = out.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.results.put(out.detach())  # leak: holder=results kind=tensor


results = LifoQueue()
worker = Worker(results)
for _ in range(40):
    worker.work(torch.randn(4, 10, device=device))
print(results.get().shape)
