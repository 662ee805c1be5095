import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
snapshots = []
for step in range(20):
    x = torch.randn(12, 16, device=device)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    snapshots.append([p.grad.clone() for p in model.parameters()])  # leak: holder=snapshots kind=tensor
    optimizer.step()
