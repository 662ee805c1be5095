import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(16):
    x, y = torch.randn(8, 6, device=device), torch.randint(0, 3, (8,), device=device)
    nn.functional.cross_entropy(model(x), y).backward()
    kept = []
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            nudge = p.grad * (0.05 / (norm + 1e-12))
            p.add_(nudge)
            kept.append((p, nudge))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p, nudge in kept:
            p.sub_(nudge)
    optimizer.step()
    optimizer.zero_grad()
