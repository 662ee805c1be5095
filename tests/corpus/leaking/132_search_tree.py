import math
import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class TreeNode:
    def __init__(self, state):
        self.state, self.children, self.visits = state, {}, 0

    def expand(self, action, state):
        self.children[action] = TreeNode(state)  # leak: holder=children|root kind=tensor
        return self.children[action]


value = nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, 1)).to(device)
optimizer = torch.optim.SGD(value.parameters(), lr=0.01)
root = TreeNode(torch.zeros(9, device=device))
for simulation in range(24):
    node = root
    while node.children and random.random() < 0.5:
        node.visits += 1
        node = random.choice(list(node.children.values()))
    leaf = node.expand(len(node.children), node.state + torch.randn(9, device=device))
    loss = (value(leaf.state) - math.tanh(simulation)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
