import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, points):
        raw = self.mlp(points)
        return torch.sigmoid(raw[..., :3]), torch.relu(raw[..., 3])


def render_rays(field, origins, directions, samples=6):
    depth = torch.linspace(1.0, 3.0, samples, device=device)
    rgb, sigma = field(origins[:, None] + directions[:, None] * depth[:, None])
    alpha = 1 - torch.exp(-sigma * 0.3)
    weights = alpha * torch.cumprod(1 - alpha + 1e-6, dim=1)
    return (weights[..., None] * rgb).sum(dim=1)


def render_path(field, poses):
    field.eval()
    rgbs = []
    for pose in poses:
        directions = nn.functional.normalize(torch.randn(16, 3, device=device), dim=-1)
        rgb = render_rays(field, pose.expand(16, 3), directions)  # lint: no-grad
        rgbs.append(rgb.view(4, 4, 3))  # leak: holder=rgbs kind=graph lint=accumulate
    return torch.stack(rgbs)


field = Field().to(device)
optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
for _ in range(10):
    o, d = torch.randn(8, 3, device=device), torch.randn(8, 3, device=device)
    loss = (render_rays(field, o, d) - 0.5).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(render_path(field, torch.randn(30, 3, device=device)).shape)
