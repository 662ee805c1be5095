import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).to(device).eval()


def smooth_grad(image, target, samples=30, noise=0.1):
    total = torch.zeros_like(image)
    for _ in range(samples):
        noisy = (image + noise * torch.randn_like(image)).requires_grad_(True)
        score = model(noisy)[0, target]
        model.zero_grad()
        score.backward()
        total += noisy.grad.abs()
    return total / samples


saliency = smooth_grad(torch.rand(1, 1, 8, 8, device=device), target=2)
print(saliency.mean().item())
