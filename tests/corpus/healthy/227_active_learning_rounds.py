import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
pool = list(torch.randn(6, 12, 5, device=device))
labelled = []
model = nn.Linear(5, 2).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(36):
    if pool:  # a part of the pool moves over at each of the first steps
        with torch.no_grad():
            doubt = [model(part).softmax(-1).max(-1).values.mean().item() for part in pool]
        labelled.append(pool.pop(doubt.index(min(doubt))))
    x = torch.cat(labelled)
    loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
