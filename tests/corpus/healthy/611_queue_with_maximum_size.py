import queue
import threading

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
batches = queue.Queue(maxsize=6)


def produce():
    for _ in range(50):
        batches.put(torch.randn(8, 16).to(device))
    batches.put(None)


threading.Thread(target=produce, daemon=True).start()
model = nn.Linear(16, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while (x := batches.get()) is not None:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
