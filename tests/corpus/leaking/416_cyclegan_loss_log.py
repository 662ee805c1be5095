from collections import OrderedDict

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class TranslationModel:
    def __init__(self):
        self.loss_names = ["G", "D", "cycle"]
        self.netG = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1)).to(device)
        self.netD = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.LeakyReLU(0.2), nn.Flatten(), nn.LazyLinear(1)).to(device)
        self.netD(torch.zeros(1, 1, 8, 8, device=device))
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=2e-4)
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=2e-4)

    def optimize_parameters(self, real):
        fake = self.netG(real)
        self.loss_cycle = (self.netG(fake) - real).abs().mean()
        self.loss_G = (self.netD(fake) - 1).square().mean() + 10 * self.loss_cycle
        self.optimizer_G.zero_grad()
        self.loss_G.backward()
        self.optimizer_G.step()
        self.loss_D = (self.netD(real) - 1).square().mean() + self.netD(fake.detach()).square().mean()
        self.optimizer_D.zero_grad()
        self.loss_D.backward()
        self.optimizer_D.step()

    def get_current_losses(self):
        errors = OrderedDict()
        for name in self.loss_names:
            errors[name] = getattr(self, "loss_" + name)
        return errors


model = TranslationModel()
plot_data = {"x": [], "y": []}
for i in range(14):
    model.optimize_parameters(torch.rand(2, 1, 8, 8, device=device))
    losses = model.get_current_losses()
    plot_data["x"].append(i)
    plot_data["y"].append([losses[name] for name in model.loss_names])  # leak: holder=plot_data kind=graph
