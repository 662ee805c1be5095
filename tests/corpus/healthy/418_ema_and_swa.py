import copy

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class EMA:
    def __init__(self, model, decay=0.99):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ema_p, p in zip(self.module.state_dict().values(), model.state_dict().values()):
            ema_p.copy_(self.decay * ema_p + (1.0 - self.decay) * p)


model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
ema = EMA(model)
optimizer = torch.optim.Adam(model.parameters())
for step in range(28):
    x = torch.randn(6, 10, device=device)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
    agreement = (ema.module(x).argmax(1) == model(x).argmax(1)).float().mean().item()
