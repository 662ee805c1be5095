import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    collected = []
    for step in range(12):
        x = torch.randn(8, 10, device=device)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        collected.append(loss.detach())
    print(epoch, torch.stack(collected).mean().item())
    del collected
