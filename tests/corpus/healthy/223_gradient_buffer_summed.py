import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Fisher:
    """The diagonal of the Fisher information, accumulated during training."""

    def __init__(self, model):
        self.model = model
        self.diagonal = {}

    def add(self):
        for name, p in self.model.named_parameters():
            squared = p.grad.detach() ** 2
            self.diagonal[name] = self.diagonal[name] + squared if name in self.diagonal else squared


model = nn.Sequential(nn.Linear(7, 14), nn.Tanh(), nn.Linear(14, 2)).to(device)
fisher = Fisher(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(24):
    loss = model(torch.randn(8, 7, device=device)).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    fisher.add()
    optimizer.step()
