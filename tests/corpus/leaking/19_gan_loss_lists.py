import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
netG = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)).to(device)
netD = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(device)
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4)
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4)
G_losses = []
D_losses = []
for i in range(20):
    real = torch.randn(12, 16, device=device)
    fake = netG(torch.randn(12, 8, device=device))
    netD.zero_grad()
    errD_real = criterion(netD(real), torch.ones(12, 1, device=device))
    errD_fake = criterion(netD(fake.detach()), torch.zeros(12, 1, device=device))
    errD = errD_real + errD_fake
    errD.backward()
    optimizerD.step()
    netG.zero_grad()
    errG = criterion(netD(fake), torch.ones(12, 1, device=device))
    errG.backward()
    optimizerG.step()
    G_losses.append(errG)  # leak: holder=G_losses|D_losses kind=graph lint=accumulate
    D_losses.append(errD)  # also: lint=accumulate
