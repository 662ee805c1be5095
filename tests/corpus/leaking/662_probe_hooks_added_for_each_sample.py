import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)).to(device)
net(torch.zeros(1, 1, 10, 10, device=device))


def saliency(x):
    seen = {}

    def keep(module, inputs, output):
        seen["map"] = output.detach().clone()

    net[0].register_forward_hook(keep)  # leak: holder=_forward_hooks|net|keep kind=tensor
    net(x).sum().backward()
    return seen["map"].mean().item()


scores = [saliency(torch.randn(2, 1, 10, 10, device=device)) for _ in range(60)]
