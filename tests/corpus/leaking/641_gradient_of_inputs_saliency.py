import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 5)).to(device).eval()
maps = []
for number in range(40):
    x = torch.randn(4, 20, device=device, requires_grad=True)
    net(x)[:, 0].sum().backward()
    maps.append(x.grad.abs())  # leak: holder=maps kind=tensor
