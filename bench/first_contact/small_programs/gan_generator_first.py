import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=1024, help="size of the batches")
opt = parser.parse_args()
torch.manual_seed(0)
generator = nn.Sequential(
    nn.Linear(100, 256), nn.BatchNorm1d(256), nn.LeakyReLU(0.2), nn.Linear(256, 1024), nn.BatchNorm1d(1024),
    nn.LeakyReLU(0.2), nn.Linear(1024, 3072), nn.Tanh(),
).cuda()  # fmt: skip
discriminator = nn.Sequential(nn.Linear(3072, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1), nn.Sigmoid()).cuda()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
loss = nn.BCELoss()
for step in range(5):
    valid = torch.ones(opt.batch_size, 1, device="cuda")
    fake = torch.zeros(opt.batch_size, 1, device="cuda")
    real_imgs = torch.randn(opt.batch_size, 3072, device="cuda")
    optimizer_g.zero_grad()
    gen_imgs = generator(torch.randn(opt.batch_size, 100, device="cuda"))
    g_loss = loss(discriminator(gen_imgs), valid)
    g_loss.backward()
    optimizer_g.step()
    optimizer_d.zero_grad()
    real_loss = loss(discriminator(real_imgs), valid)
    fake_loss = loss(discriminator(gen_imgs.detach()), fake)
    d_loss = (real_loss + fake_loss) / 2
    d_loss.backward()
    optimizer_d.step()
print("done")
