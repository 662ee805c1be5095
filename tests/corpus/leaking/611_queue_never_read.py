import queue

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
outbox = queue.Queue()
net = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(40):
    out = net(torch.randn(4, 16, device=device))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    outbox.put(out)  # leak: holder=outbox kind=graph|tensor
print(outbox.qsize())
