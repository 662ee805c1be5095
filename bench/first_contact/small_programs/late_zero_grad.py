import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(10) for layer in (nn.Linear(768, 768), nn.Tanh())]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    x = torch.randn(512, 768, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.5f}")
