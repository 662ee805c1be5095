import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Node:
    def __init__(self, value, parent=None):
        self.value, self.parent, self.children = value, parent, []
        if parent is not None:
            parent.children.append(self)


def build():
    root = Node(1.0)
    for _ in range(40):
        Node(2.0, root)
    return sum(each.value for each in root.children)


model = nn.Linear(10, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(50):
    loss = model(torch.randn(8, 10, device=device)).square().mean() * build()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
