import gc

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Step:
    def __init__(self, activations):
        self.activations = activations
        self.report = lambda: self.activations.norm().item()  # leak: holder=report|Step|activations kind=tensor|graph


def main():
    gc.disable()
    net = nn.Sequential(nn.Linear(24, 24), nn.ReLU()).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(40):
        out = net(torch.randn(16, 24, device=device))
        loss = out.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step = Step(out.detach())  # also:


main()
