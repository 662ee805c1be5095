import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
critic = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1)).to(device)
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
for step in range(40):
    x = torch.randn(8, 6, device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    loss = ((gradient.norm(dim=1) - 1) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
