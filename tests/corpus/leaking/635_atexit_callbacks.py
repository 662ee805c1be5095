import atexit

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)


def summary(value):
    value.sum()


for step in range(40):
    out = net(torch.randn(8, 16, device=device))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    atexit.register(summary, out.detach())  # leak: holder=atexit|register|out kind=tensor
