import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
netG = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 10)).to(device)
netD = nn.Sequential(nn.Linear(10, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1)).to(device)
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(8, 6, device=device)
img_list = []
for iters in range(20):
    real = torch.randn(12, 10, device=device)
    netD.zero_grad()
    errD_real = criterion(netD(real), torch.ones(12, 1, device=device))
    fake = netG(torch.randn(12, 6, device=device))
    errD_fake = criterion(netD(fake.detach()), torch.zeros(12, 1, device=device))
    (errD_real + errD_fake).backward()
    optimizerD.step()
    netG.zero_grad()
    errG = criterion(netD(fake), torch.ones(12, 1, device=device))
    errG.backward()
    optimizerG.step()
    img_list.append(netG(fixed_noise).cpu())  # leak: holder=img_list kind=graph lint=accumulate
