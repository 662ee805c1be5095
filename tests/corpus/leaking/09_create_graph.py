import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
critic = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
penalties = []

for step in range(20):
    real = torch.randn(16, 6, device=device, requires_grad=True)
    score = critic(real).sum()
    (gradient,) = torch.autograd.grad(score, real, create_graph=True)
    penalty = ((gradient.norm(dim=1) - 1) ** 2).mean()
    penalties.append(penalty)  # leak: holder=penalties kind=graph lint=accumulate
    optimizer.zero_grad()
    (penalty - score).backward()
    optimizer.step()
print(len(penalties))
