import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
best, best_step = None, -1
for step in range(26):
    loss = model(torch.randn(10, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if best is None or loss < best:
        best, best_step = loss, step
print(best_step, best.item())
