import queue
import threading
import time

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
frames = queue.SimpleQueue()


def consumer():
    while frames.get() is not None:
        time.sleep(1.0)


thread = threading.Thread(target=consumer, daemon=True)
thread.start()
model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    image = torch.randn(2, 3, 8, 8, device=device)
    out = model(image)
    loss = (out.mean() - 1).square()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    frames.put(out.detach())  # leak: holder=frames kind=tensor
