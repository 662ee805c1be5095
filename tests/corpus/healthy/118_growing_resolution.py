import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
grids = {}


def grid(size):
    if size not in grids:
        axis = torch.linspace(-1, 1, size, device=device)
        grids[size] = axis[:, None] * axis[None, :]
    return grids[size]


for step in range(36):
    size = 6 + 2 * (step // 12)  # progressive resizing
    images = torch.rand(4, 1, size, size, device=device) + grid(size)
    loss = nn.functional.cross_entropy(model(images), torch.randint(0, 2, (4,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
