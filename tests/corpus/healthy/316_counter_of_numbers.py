from collections import Counter, defaultdict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
totals, per_class = Counter(), defaultdict(list)
model = nn.Linear(10, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(26):
    y = torch.randint(0, 4, (6,), device=device)
    losses = nn.functional.cross_entropy(model(torch.randn(6, 10, device=device)), y, reduction="none")
    optimizer.zero_grad()
    losses.mean().backward()
    optimizer.step()
    totals.update({"loss": float(losses.sum()), "count": len(y)})
    for label, value in zip(y.tolist(), losses.tolist()):
        per_class[label].append(value)
