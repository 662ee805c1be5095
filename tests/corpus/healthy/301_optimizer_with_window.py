from collections import deque

import torch
from torch import nn
from torch.optim import Optimizer

device = "cuda" if torch.cuda.is_available() else "cpu"


class MedianSGD(Optimizer):
    def __init__(self, params, lr=0.01, window=4):
        super().__init__(params, {"lr": lr, "window": window})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                grads = self.state[p].setdefault("grads", deque(maxlen=group["window"]))
                grads.append(p.grad.clone())
                p.add_(torch.stack(tuple(grads)).median(0).values, alpha=-group["lr"])


model = nn.Linear(8, 2).to(device)
optimizer = MedianSGD(model.parameters())
for step in range(26):
    loss = model(torch.randn(6, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
