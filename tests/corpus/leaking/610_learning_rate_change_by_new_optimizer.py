import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Trainer:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 2)).to(device)
        self.history = []

    def set_rate(self, rate):
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=rate)
        self.history.append({"rate": rate, "optimizer": self.optimizer})  # leak: holder=history kind=tensor

    def step(self, x):
        loss = self.net(x).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


trainer = Trainer()
for step in range(40):
    trainer.set_rate(0.01 * 0.99**step)
    trainer.step(torch.randn(8, 20, device=device))
