import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Linear(16, 64).to(device).eval()


def summaries(count):
    first = []
    with torch.no_grad():
        for _ in range(count):
            out = net(torch.randn(32, 16, device=device))
            first.append(out[:, 0])  # leak: holder=first kind=tensor
    return torch.stack(first)


summaries(50)
