import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
features = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()).to(device).eval().requires_grad_(False)
content = torch.rand(1, 3, 10, 10, device=device)
target = features(content)
image = torch.rand_like(content).requires_grad_(True)
optimizer = torch.optim.Adam([image], lr=0.02)
snapshots = []
for step in range(26):
    loss = (features(image) - target).pow(2).mean() + 1e-4 * (image[..., 1:] - image[..., :-1]).abs().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        image.clamp_(0, 1)
    snapshots.append(image)  # the same tensor each time
    snapshots = snapshots[-1:]
print(snapshots[0].mean().item())
