import gc

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
gc.disable()
model = nn.Linear(10, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def total(tree):
    found = []

    def visit(node):  # leak: holder=visit|found kind=graph|tensor
        for each in node:
            if isinstance(each, list):
                visit(each)
            else:
                found.append(each)  # also:

    visit(tree)
    return sum(found)


for step in range(40):
    x = torch.randn(4, 10, device=device)
    loss = total([model(x).mean(), [model(2 * x).mean(), [model(-x).square().mean()]]])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
