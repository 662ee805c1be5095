import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
from collections import deque

model = nn.Linear(9, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
recent = deque(maxlen=20)
for step in range(60):
    x = torch.randn(7, 9, device=device)
    loss = model(x).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    recent.append(loss.detach())
print(torch.stack(list(recent)).mean().item())
