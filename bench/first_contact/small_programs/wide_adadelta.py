import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1024)
).cuda()
optimizer = torch.optim.Adadelta(model.parameters())
for step in range(4):
    x = torch.randn(16, 1024, device="cuda")
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.4f}")
