import logging
import logging.handlers

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
log = logging.getLogger("quiet")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(logging.handlers.MemoryHandler(capacity=10_000))
net = nn.Linear(10, 10).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(50):
    loss = net(torch.randn(8, 10, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.debug("step %d loss %.3f", step, loss.item())
