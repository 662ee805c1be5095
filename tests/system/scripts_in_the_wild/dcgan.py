"""The loop of the DCGAN tutorial: two optimizers, weights_init, an unneeded retain_graph, fixed noise and a gradient
penalty."""

import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(999)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
nz, ngf, ndf, batch = 8, 8, 8, 6


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
    nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False), nn.Tanh(),
)  # fmt: skip
netD = nn.Sequential(
    nn.Conv2d(1, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.utils.spectral_norm(nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False)), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False), nn.Flatten(0), nn.Sigmoid(),
)  # fmt: skip
netG.apply(weights_init).to(device)
netD.apply(weights_init).to(device)
criterion = nn.BCELoss()
fixed_noise = torch.randn(4, nz, 1, 1, device=device)
real_label, fake_label = 1.0, 0.0
optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))


def gradient_penalty(real, fake):
    alpha = torch.rand(real.size(0), 1, 1, 1, device=real.device)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = netD(mixed)
    grads = torch.autograd.grad(
        outputs=scores, inputs=mixed, grad_outputs=torch.ones(scores.size(), device=device),
        create_graph=True, retain_graph=True, only_inputs=True,
    )[0]  # fmt: skip
    return ((grads.view(grads.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()


G_losses, img_list = [], []
for i in range(3):
    netD.zero_grad()
    real = torch.randn(batch, 1, 16, 16).to(device)
    label = torch.full((batch,), real_label, dtype=torch.float, device=device)
    errD_real = criterion(netD(real).view(-1), label)
    errD_real.backward()
    noise = torch.randn(batch, nz, 1, 1, device=device)
    fake = netG(noise)
    label.fill_(fake_label)
    errD_fake = criterion(netD(fake.detach()).view(-1), label)
    errD_fake.backward(retain_graph=True)
    penalty = 10 * gradient_penalty(real, fake.detach())
    penalty.backward()
    optimizerD.step()
    netG.zero_grad()
    label.fill_(real_label)
    errG = criterion(netD(fake).view(-1), label)
    errG.backward()
    optimizerG.step()
    G_losses.append(errG.item())
    print(i, (errD_real + errD_fake).item(), errG.item(), penalty.item())
with torch.no_grad():
    img_list.append(netG(fixed_noise).detach().cpu())
print(img_list[0].numpy().mean(), G_losses)
