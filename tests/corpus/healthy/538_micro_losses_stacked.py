import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(10, 30), nn.SiLU(), nn.Linear(30, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
micro_losses, step_losses = [], []
for i in range(120):
    x, y = torch.randn(3, 10, device=device), torch.randint(0, 4, (3,), device=device)
    micro_losses.append(nn.functional.cross_entropy(model(x), y))
    if len(micro_losses) == 4:
        loss = torch.stack(micro_losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step_losses.append(loss.item())
        micro_losses = []
print(step_losses[-1])
