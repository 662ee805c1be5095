import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
denoiser = nn.Conv2d(3, 3, 3, padding=1).to(device).eval()
betas = torch.linspace(1e-3, 0.02, 20, device=device)
images = []
with torch.no_grad():
    for _ in range(4):
        x = torch.randn(2, 3, 8, 8, device=device)
        for beta in betas:
            x = (x - beta * denoiser(x)) / (1 - beta).sqrt()
        images.append(x.cpu())
print(len(images))
