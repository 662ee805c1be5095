import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Grower:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).to(device)
        self.optimizers = {}

    def level(self, number):
        self.optimizers[number] = torch.optim.Adam(self.net.parameters(), lr=1e-3)  # leak: holder=optimizers kind=tensor
        for _ in range(4):
            loss = self.net(torch.randn(8, 16, device=device)).square().mean()
            self.optimizers[number].zero_grad()
            loss.backward()
            self.optimizers[number].step()


grower = Grower()
for number in range(24):
    grower.level(number)
