import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
critic = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
penalties = []
for step in range(18):
    x = torch.randn(6, 5, device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    penalty = (gradient.norm(dim=1) - 1).square().mean()
    optimizer.zero_grad()
    penalty.backward()
    optimizer.step()
    penalties += [penalty]  # leak: holder=penalties kind=graph lint=accumulate
