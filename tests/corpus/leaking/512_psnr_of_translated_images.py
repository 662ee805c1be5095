import torch
from torch import nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def psnr(prediction, target, data_range=1.0):
    mse = torch.mean((prediction - target) ** 2)
    return 10 * torch.log10(data_range**2 / mse)


class CycleGAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.G = nn.Conv2d(3, 3, 3, padding=1)
        self.F = nn.Conv2d(3, 3, 3, padding=1)
        self.train_metrics = {"psnr_A": [], "psnr_B": []}

    def training_step(self, a, b):
        fake_b, fake_a = self.G(a), self.F(b)
        cycle = (self.F(fake_b) - a).abs().mean() + (self.G(fake_a) - b).abs().mean()
        self.train_metrics["psnr_A"].append(psnr(fake_a, a))  # leak: holder=train_metrics kind=graph lint=accumulate
        self.train_metrics["psnr_B"].append(psnr(fake_b, b))  # also: lint=accumulate
        return cycle


model = CycleGAN().to(device)
opt = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
for step in range(20):
    loss = model.training_step(torch.rand(1, 3, 9, 9, device=device), torch.rand(1, 3, 9, 9, device=device))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(step, {k: round(v[-1].item(), 2) for k, v in model.train_metrics.items()})
