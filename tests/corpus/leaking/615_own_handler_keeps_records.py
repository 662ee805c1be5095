import logging

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Tail(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)  # leak: holder=records kind=graph|tensor


logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)
logger.addHandler(Tail())
logger.propagate = False


def train(net, optimizer):
    for step in range(40):
        out = net(torch.randn(8, 10, device=device))
        loss = out.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.info("output %s", out)  # also:


net = nn.Linear(10, 10).to(device)
train(net, torch.optim.SGD(net.parameters(), lr=0.01))
