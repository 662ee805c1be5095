import copy

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fit(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    checkpoints = []
    for step in range(steps):
        x = torch.randn(10, 9, device=device)
        loss = (model(x).squeeze(-1) - x[:, 0]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpoints.append((loss.item(), copy.deepcopy(model.state_dict())))  # leak: holder=checkpoints kind=tensor
    return min(checkpoints, key=lambda pair: pair[0])


best_loss, best_state = fit(nn.Linear(9, 1).to(device), 22)
print(best_loss)
