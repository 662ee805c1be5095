import itertools

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class InputSpy:
    def __init__(self, model):
        self.counter = itertools.count()
        self.inputs = {}
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(self.look)

    def look(self, module, args):
        self.inputs[next(self.counter)] = args[0]  # leak: holder=inputs kind=graph lint=hook-append


model = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 12), nn.SiLU(), nn.Linear(12, 1)).to(device)
spy = InputSpy(model)
optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    loss = model(torch.randn(5, 6, device=device)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
