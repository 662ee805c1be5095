import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
steps = 26
model = nn.Sequential(nn.Linear(7, 14), nn.ELU(), nn.Linear(14, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
losses = torch.zeros(steps, device=device)
norms = torch.zeros(steps, device=device)
for i in range(steps):
    x = torch.randn(12, 7, device=device)
    loss = (model(x) - x.amax(1, keepdim=True)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    norms[i] = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses[i] = loss.detach()
print(losses.mean().item(), norms.max().item())
