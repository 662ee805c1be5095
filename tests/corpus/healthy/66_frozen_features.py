import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
backbone = nn.Sequential(nn.Linear(10, 32), nn.ReLU()).to(device)
for parameter in backbone.parameters():
    parameter.requires_grad = False
head = nn.Linear(32, 2).to(device)
optimizer = torch.optim.Adam(head.parameters())
for step in range(20):
    features = backbone(torch.randn(8, 10, device=device))
    loss = nn.functional.cross_entropy(head(features), torch.randint(0, 2, (8,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
