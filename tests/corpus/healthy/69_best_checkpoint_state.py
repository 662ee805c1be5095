import copy

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class EarlyStopping:
    def __init__(self, patience=3):
        self.patience, self.best, self.state, self.bad = patience, float("inf"), None, 0

    def __call__(self, value, model):
        if value < self.best:
            self.best, self.bad = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad > self.patience


model = nn.Linear(7, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
stopper = EarlyStopping(patience=100)
for epoch in range(20):
    loss = model(torch.randn(16, 7, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if stopper(loss.item(), model):
        break
