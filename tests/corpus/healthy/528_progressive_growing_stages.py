import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Grower(nn.Module):
    """Starts at 4x4 and doubles the resolution twice."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1)])
        self.to_rgb = nn.Conv2d(4, 3, 1)

    def grow(self):
        block = nn.Conv2d(4, 4, 3, padding=1).to(device)
        self.blocks.append(block)
        return block

    def forward(self, z):
        x = F.leaky_relu(self.blocks[0](z))
        for block in self.blocks[1:]:
            x = F.leaky_relu(block(F.interpolate(x, scale_factor=2)))
        return self.to_rgb(x)


net = Grower().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(54):
    if step in (6, 12):
        optimizer.add_param_group({"params": net.grow().parameters()})
    image = net(torch.randn(2, 4, 4, 4, device=device))
    loss = (image - 0.5).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
