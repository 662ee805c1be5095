import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)).to(device)
net.eval()
features = []
net[2].register_forward_hook(lambda module, inputs, output: features.append(output))  # leak: holder=features kind=tensor
with torch.no_grad():
    for _ in range(40):
        net(torch.randn(2, 3, 12, 12, device=device))
