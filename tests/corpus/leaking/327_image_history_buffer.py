import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class ImagePool:
    """Returns a random earlier fake image to the discriminator in half of the queries."""

    def __init__(self):
        self.images = []

    def query(self, image):
        self.images.append(image)  # leak: holder=images kind=graph
        return random.choice(self.images) if random.random() < 0.5 else image


pool = ImagePool()
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
D = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for _ in range(20):
    fake = G(torch.randn(6, 4, device=device))
    opt_g.zero_grad()
    (-D(fake).mean()).backward()
    opt_g.step()
    old = pool.query(fake).detach()  # also: lint=accumulate
    opt_d.zero_grad()
    (D(old) - D(torch.randn(6, 8, device=device))).mean().backward()
    opt_d.step()
