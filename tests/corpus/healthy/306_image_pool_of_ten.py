import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class ImagePool:
    def __init__(self, size=10):
        self.size, self.images = size, []

    def query(self, image):
        if len(self.images) < self.size:
            self.images.append(image)
            return image
        at = random.randrange(self.size)
        old, self.images[at] = self.images[at], image
        return old if random.random() < 0.5 else image


pool = ImagePool()
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
D = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for _ in range(32):
    fake = G(torch.randn(6, 4, device=device))
    opt_g.zero_grad()
    (-D(fake).mean()).backward()
    opt_g.step()
    opt_d.zero_grad()
    (D(pool.query(fake.detach())) - D(torch.randn(6, 8, device=device))).mean().backward()
    opt_d.step()
