import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(5, 15), nn.Tanh(), nn.Linear(15, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
val = torch.randn(20, 5, device=device)
best = []
for step in range(40):
    x = torch.randn(10, 5, device=device)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        score = (model(val) - val.sum(1, keepdim=True)).abs().mean().item()
    best.append((score, {k: v.clone() for k, v in model.state_dict().items()}))
    best = sorted(best, key=lambda pair: pair[0])[:3]
print([round(score, 3) for score, _ in best])
