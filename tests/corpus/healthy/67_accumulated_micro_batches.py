import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(12):
    optimizer.zero_grad()
    logged = torch.zeros((), device=device)
    for micro in range(4):
        loss = model(torch.randn(4, 8, device=device)).square().mean() / 4
        loss.backward()
        logged += loss.detach()
    optimizer.step()
    print(f"step {step} loss {logged.item():.3f}")
