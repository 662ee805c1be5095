import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Adapters:
    _all = []

    def __init__(self, base):
        self.delta = nn.Parameter(torch.zeros_like(base.weight))
        self.optimizer = torch.optim.Adam([self.delta], lr=0.1)
        Adapters._all.append(self)  # leak: holder=_all kind=tensor

    def fit(self, base, x):
        for _ in range(2):
            loss = nn.functional.linear(x, base.weight + self.delta).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


base = nn.Linear(16, 16).to(device).requires_grad_(False)
for prompt in range(40):
    Adapters(base).fit(base, torch.randn(4, 16, device=device))
