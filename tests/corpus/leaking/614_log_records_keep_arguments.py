import logging
import logging.handlers

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
log = logging.getLogger("train")
log.setLevel(logging.DEBUG)
log.propagate = False
memory = logging.handlers.MemoryHandler(capacity=100_000, flushLevel=logging.ERROR)
log.addHandler(memory)

net = nn.Linear(10, 10).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(40):
    loss = net(torch.randn(8, 10, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.debug("step %d loss %s", step, loss)  # leak: holder=memory|buffer kind=graph|tensor
