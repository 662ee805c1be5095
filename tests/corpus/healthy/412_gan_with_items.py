import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
netG = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 10)).to(device)
netD = nn.Sequential(nn.Linear(10, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
optD, optG = (torch.optim.Adam(n.parameters(), lr=2e-4, betas=(0.5, 0.999)) for n in (netD, netG))
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(6, 4, device=device)
G_losses, D_losses, img_list = [], [], []

for i in range(24):
    real = torch.randn(8, 10, device=device)
    fake = netG(torch.randn(8, 4, device=device))
    errD = criterion(netD(real), torch.ones(8, 1, device=device)) + criterion(netD(fake.detach()), torch.zeros(8, 1, device=device))
    optD.zero_grad()
    errD.backward()
    optD.step()
    errG = criterion(netD(fake), torch.ones(8, 1, device=device))
    optG.zero_grad()
    errG.backward()
    optG.step()
    G_losses.append(errG.item())
    D_losses.append(errD.item())
    if i % 8 == 0:
        with torch.no_grad():
            img_list = [netG(fixed_noise).cpu()]
