import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
backbone = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 16)).to(device)
head = nn.Linear(16, 4).to(device)
for p in backbone.parameters():
    p.requires_grad = False
optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
losses = []
for epoch in range(6):
    if epoch == 2:
        for p in backbone.parameters():
            p.requires_grad = True
        optimizer.add_param_group({"params": backbone.parameters(), "lr": 1e-4})
    epoch_loss = 0.0
    for _ in range(6):
        x, y = torch.randn(8, 16, device=device), torch.randint(0, 4, (8,), device=device)
        loss = nn.functional.cross_entropy(head(backbone(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    losses.append(epoch_loss / 6)
print(losses)
