import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Lookahead:
    def __init__(self, optimizer, k=6, alpha=0.5):
        self.optimizer, self.k, self.alpha, self.calls = optimizer, k, alpha, 0
        self.slow = {}

    def zero_grad(self):
        self.optimizer.zero_grad()

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        self.calls += 1
        if self.calls % self.k:
            return
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p not in self.slow:
                    self.slow[p] = p.clone()
                self.slow[p].lerp_(p, self.alpha)
                p.copy_(self.slow[p])


model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1)).to(device)
optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=1e-2))
for step in range(36):
    x = torch.randn(12, 6, device=device)
    loss = (model(x).squeeze(1) - x.amax(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
