import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.Linear(18, 3)).to(device).requires_grad_(False)
delta = nn.Parameter(torch.zeros(9, device=device))  # a universal perturbation
optimizer = torch.optim.SGD([delta], lr=1e-2)
accumulated = torch.zeros((), device=device)
for step in range(18):
    x, y = torch.randn(6, 9, device=device), torch.randint(0, 3, (6,), device=device)
    loss = -nn.functional.cross_entropy(model(x + delta), y)
    accumulated = accumulated + loss  # leak: holder=accumulated kind=graph lint=accumulate
    optimizer.zero_grad()
    accumulated.backward(retain_graph=True)  # lint: retain-graph
    optimizer.step()
