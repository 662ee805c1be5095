import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(15, 30), nn.ReLU(), nn.Linear(30, 3)).to(device)
optimizer = torch.optim.Adam(model.parameters())
worst = []
for step in range(40):
    x, y = torch.randn(6, 15, device=device), torch.randint(0, 3, (6,), device=device)
    per_sample = nn.functional.cross_entropy(model(x), y, reduction="none")
    optimizer.zero_grad()
    per_sample.mean().backward()
    optimizer.step()
    hard = per_sample.argmax().item()
    worst.append((per_sample[hard].item(), x[hard].clone().cpu()))
    worst = sorted(worst, key=lambda item: -item[0])[:5]
print([round(score, 2) for score, _ in worst])
