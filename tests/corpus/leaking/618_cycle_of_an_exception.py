import gc

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
gc.disable()
net = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def attempt(x):
    out = net(x)
    failure = None
    try:
        raise ValueError("bad batch")
    except ValueError as error:
        failure = error  # leak: holder=failure|attempt|error kind=tensor|graph
    return out.mean()


for step in range(40):
    loss = attempt(torch.randn(8, 16, device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
