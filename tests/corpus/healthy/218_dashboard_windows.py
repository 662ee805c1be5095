import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Dashboard:
    """Shows the latest image in each window."""

    def __init__(self):
        self.windows = {}

    def show(self, window, tensor):
        self.windows[window] = tensor


dashboard = Dashboard()
model = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(26):
    image = torch.rand(5, 16, device=device)
    reconstruction = model(image)
    loss = (reconstruction - image).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dashboard.show("input", image)
    dashboard.show(f"reconstruction {step % 3}", reconstruction)
