import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(10) for layer in (nn.Linear(1024, 1024), nn.Tanh())]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    x = torch.randn(1024, 1024, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.5f}")
