import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@torch.no_grad()
def langevin(energy, x, noise=0.01):
    return x - 0.1 * energy.weight.mean(0) + noise * torch.randn_like(x)


energy = nn.Linear(7, 3).to(device)
optimizer = torch.optim.SGD(energy.parameters(), lr=0.01)
chain = ()
sample = torch.randn(10, 7, device=device)
for step in range(24):
    sample = langevin(energy, sample)
    loss = energy(torch.randn(10, 7, device=device)).square().mean() - energy(sample).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    chain = (*chain, sample)  # leak: holder=chain kind=tensor
print(len(chain))
