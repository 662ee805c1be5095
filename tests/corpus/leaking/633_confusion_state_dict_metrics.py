import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class State:
    def __init__(self):
        self.values = {"tp": [], "fp": []}

    def merge(self, tp, fp):
        self.values["tp"] += [tp]  # leak: holder=values kind=tensor
        self.values["fp"] += [fp]  # also:


class F1:
    def __init__(self):
        self.state = State()

    def __call__(self, predicted, target):
        self.state.merge((predicted & target).sum(0), (predicted & ~target).sum(0))


net, f1 = nn.Linear(10, 5).to(device), F1()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(40):
    out = net(torch.randn(16, 10, device=device))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    f1(out.detach() > 0, torch.rand(16, 5, device=device) > 0.5)
