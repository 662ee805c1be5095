import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Experiment:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(9, 27), nn.ELU(), nn.Linear(27, 9)).to(device)
        self.opt = torch.optim.Adagrad(self.net.parameters(), lr=0.01)
        self.loss_sum = torch.tensor(0.0, device=device)
        self.iterations = 0

    def iterate(self, x):
        self.opt.zero_grad()
        reconstruction = self.net(x)
        batch_loss = torch.mean((reconstruction - x) ** 2)
        batch_loss.backward()
        self.opt.step()
        self.loss_sum = self.loss_sum + batch_loss  # leak: holder=loss_sum kind=graph lint=accumulate
        self.iterations += 1

    @property
    def mean_loss(self):
        return (self.loss_sum / self.iterations).item()


experiment = Experiment()
for _ in range(30):
    experiment.iterate(torch.randn(5, 9, device=device))
print(experiment.mean_loss)
