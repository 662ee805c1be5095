import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(10, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def flatten(tree):
    found = []

    def visit(node):
        for each in node if isinstance(node, list) else [node]:
            if isinstance(each, list):
                visit(each)
            else:
                found.append(each)

    visit(tree)
    return sum(found)


for step in range(50):
    x = torch.randn(4, 10, device=device)
    loss = flatten([model(x).mean(), [model(2 * x).mean(), [model(-x).square().mean()]]])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
