import queue
import threading

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MetricsThread(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.inbox = queue.Queue()
        self.records = []

    def run(self):
        while True:
            item = self.inbox.get()
            if item is not None:
                self.records.append(item)  # leak: holder=records kind=graph
            self.inbox.task_done()
            if item is None:
                return

    def send(self, **values):
        self.inbox.put(values)
        self.inbox.join()


worker = MetricsThread()
worker.start()
model = nn.Linear(11, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(24):
    x = torch.randn(6, 11, device=device)
    loss = model(x).sub(x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    worker.send(step=step, loss=loss)  # also: lint=accumulate
worker.send()
worker.inbox.put(None)
