from collections import defaultdict, deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SmoothedValue:
    def __init__(self, window=20):
        self.deque = deque(maxlen=window)
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.deque.append(float(value))
        self.count += n
        self.total += value * n  # leak: holder=total kind=graph


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def update(self, **metrics):
        for name, value in metrics.items():
            self.meters[name].update(value)


def train_one_epoch(model, optimizer, batches, logger):
    for x, y in batches:
        loss = nn.functional.l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.update(loss=loss, lr=optimizer.param_groups[0]["lr"])  # also: lint=accumulate


model = nn.Linear(5, 1).to(device)
batches = [(torch.randn(8, 5, device=device), torch.randn(8, 1, device=device)) for _ in range(22)]
train_one_epoch(model, torch.optim.SGD(model.parameters(), lr=0.01), batches, MetricLogger())
