import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Center(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("center", torch.zeros(width))

    @torch.no_grad()
    def update(self, features):
        self.center = 0.9 * self.center + 0.1 * features.mean(0)

    def forward(self, features):
        self.update(features)
        return (features - self.center).square().mean()


net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)).to(device)
center = Center(4).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(26):
    loss = center(net(torch.randn(9, 6, device=device)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
