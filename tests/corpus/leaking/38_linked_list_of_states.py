import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Node:
    def __init__(self, state, parent):
        self.state = state
        self.parent = parent


policy = nn.Linear(6, 6).to(device)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
node = None
for step in range(24):
    state = torch.randn(16, 6, device=device)
    node = Node(state, node)  # leak: holder=node kind=tensor
    loss = policy(node.state).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
