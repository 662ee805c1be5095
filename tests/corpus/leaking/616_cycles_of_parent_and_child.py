import gc

import torch
from torch import nn

gc.disable()
device = "cuda" if torch.cuda.is_available() else "cpu"


class Tree:
    def __init__(self, value):
        self.value, self.children = value, []


class Leaf:
    def __init__(self, parent, value):
        self.parent = parent  # leak: holder=parent|Leaf|Tree|children kind=tensor
        self.value = value


net = nn.Linear(12, 12).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(40):
    out = net(torch.randn(4, 12, device=device))
    tree = Tree(out.detach())
    for row in out.detach().clone():
        tree.children.append(Leaf(tree, row * 2))  # also:
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
