import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
denoiser = nn.Conv2d(3, 3, 3, padding=1).to(device).eval()
trajectory = []


@torch.no_grad()
def sample(steps):
    x = torch.randn(2, 3, 8, 8, device=device)
    for t in range(steps):
        x = x - 0.1 * denoiser(x)
        trajectory.append(x)  # leak: holder=trajectory kind=tensor
    return x


for image in range(10):
    sample(6)
