import heapq

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(7, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
best = []
for step in range(30):
    x = torch.randn(9, 7, device=device)
    loss = model(x).pow(2).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    entry = (-loss.item(), step, {k: v.detach().clone() for k, v in model.state_dict().items()})
    if len(best) < 3:
        heapq.heappush(best, entry)
    else:
        heapq.heappushpop(best, entry)
model.load_state_dict(max(best)[2])
