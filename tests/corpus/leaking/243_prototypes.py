import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 6)).to(device)
optimizer = torch.optim.Adam(encoder.parameters())


def episode(prototypes):
    support, query = torch.randn(3, 10, device=device), torch.randn(6, 10, device=device)
    distance = torch.cdist(encoder(query), prototypes.detach())
    loss = nn.functional.cross_entropy(-distance, torch.arange(6, device=device) % 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen = torch.rand(3, 1, device=device) < 0.7
    return torch.where(seen, torch.lerp(prototypes, encoder(support), 0.3), prototypes)


prototypes = torch.zeros(3, 6, device=device)
for _ in range(20):
    prototypes = episode(prototypes)  # leak: holder=prototypes kind=graph lint=hidden-state
