import functools

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def traced(function):
    calls = []

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        result = function(*args, **kwargs)
        calls.append((function.__name__, result))  # leak: holder=calls kind=graph
        return result

    return wrapper


@traced
def contrastive(a, b, margin=1.0):
    return torch.relu(margin - (a - b).norm(dim=1)).mean()


encoder = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
for step in range(20):
    left, right = torch.randn(6, 12, device=device), torch.randn(6, 12, device=device)
    loss = contrastive(encoder(left), encoder(right))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
