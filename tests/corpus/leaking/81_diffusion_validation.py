import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8))

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None]], dim=1))


def validate(unet, batches):
    unet.eval()
    val_losses = []
    for clean in batches:
        noise, t = torch.randn_like(clean), torch.rand(len(clean), device=device)
        val_losses.append((unet(clean + noise * t[:, None], t) - noise).square().mean())  # leak: holder=val_losses kind=graph lint=no-grad,accumulate
    return torch.stack(val_losses).mean().item()


batches = [torch.randn(8, 8, device=device) for _ in range(24)]
print(validate(Denoiser().to(device), batches))
