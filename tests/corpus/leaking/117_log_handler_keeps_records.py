import logging

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class ListHandler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)  # leak: holder=records kind=graph


log = logging.getLogger("training")
log.setLevel(logging.INFO)
log.propagate = False
handler = ListHandler()
log.addHandler(handler)

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(22):
    loss = model(torch.randn(5, 8, device=device)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.info("step %d loss %s", step, loss)  # also:
