from collections import defaultdict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(14, 14), nn.Tanh(), nn.Linear(14, 14), nn.Tanh(), nn.Linear(14, 1)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
grad_log = defaultdict(list)
for it in range(30):
    x = torch.randn(10, 14, device=device)
    loss = (net(x).squeeze(1) - x.mean(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for name, p in net.named_parameters():
        grad_log[name].append((p.grad.norm().item(), p.grad.abs().max().item()))
    optimizer.step()
print({name: len(rows) for name, rows in grad_log.items()})
