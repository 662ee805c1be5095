import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)


class Trial:
    def __init__(self, rate):
        self.optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)

    def run(self):
        for _ in range(3):
            loss = net(torch.randn(8, 16, device=device)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


finished = []
for number in range(24):
    trial = Trial(0.01 / (number + 1))
    trial.run()
    finished.append(trial)  # leak: holder=finished kind=tensor
