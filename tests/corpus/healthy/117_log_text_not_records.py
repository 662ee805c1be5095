import logging

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MemoryLog(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(self.format(record))


log = logging.getLogger("training")
log.setLevel(logging.INFO)
log.propagate = False
log.addHandler(MemoryLog())
model = nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(24):
    loss = model(torch.randn(5, 8, device=device)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.info("step %d loss %s", step, loss)
