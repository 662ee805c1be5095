import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.Tanh())]).cuda()
optimizer = torch.optim.Adamax(model.parameters())
for step in range(3):
    x = torch.randn(16, 2048, device="cuda")
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.4f}")
