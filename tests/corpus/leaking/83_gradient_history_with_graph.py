import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(6, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
directions = []
for step in range(18):
    x = torch.randn(5, 6, device=device)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    directions.append(torch.cat([p.grad.flatten() for p in model.parameters()]))  # leak: holder=directions kind=tensor
    optimizer.step()
