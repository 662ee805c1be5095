import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batchSize", type=int, default=1024)
opt = parser.parse_args()
torch.manual_seed(0)
generator = nn.Sequential(
    nn.ConvTranspose2d(32, 64, 4), nn.BatchNorm2d(64), nn.ReLU(),
    nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 8, 4, 2), nn.Tanh(),
).cuda()  # fmt: skip
discriminator = nn.Sequential(
    nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(4096, 1)
).cuda()  # fmt: skip
optimizer_d = torch.optim.Adam(discriminator.parameters(), betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
for step in range(3):
    real = torch.randn(opt.batchSize, 3, 32, 32, device="cuda")
    ones, zeros = torch.ones(opt.batchSize, 1, device="cuda"), torch.zeros(opt.batchSize, 1, device="cuda")
    discriminator.zero_grad()
    criterion(discriminator(real), ones).backward()
    fake = generator(torch.randn(opt.batchSize, 32, 1, 1, device="cuda"))
    criterion(discriminator(fake.detach()), zeros).backward()
    optimizer_d.step()
    generator.zero_grad()
    criterion(discriminator(fake), ones).backward()
    optimizer_g.step()
print("done")
