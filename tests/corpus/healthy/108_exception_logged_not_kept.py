import traceback

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
problems = []


def checked(x):
    loss = model(x).square().mean()
    if x[0, 0] > 0:
        raise FloatingPointError("outlier in batch")
    return loss


for step in range(30):
    x = torch.randn(6, 8, device=device)
    try:
        loss = checked(x)
    except FloatingPointError as error:
        problems.append((step, str(error), traceback.format_exc()))
        loss = None
    if loss is None:
        loss = model(x.clamp(-1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
