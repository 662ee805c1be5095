import queue
import threading

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Prefetcher:
    def __init__(self, batches, depth=3):
        self.queue = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self.fill, args=(batches,), daemon=True)
        self.thread.start()

    def fill(self, batches):
        for _ in range(batches):
            self.queue.put(torch.randn(8, 12))
        self.queue.put(None)

    def __iter__(self):
        while (batch := self.queue.get()) is not None:
            yield batch.to(device)


model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for x in Prefetcher(28):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
