import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def pinball(prediction, target, q):
    error = target - prediction
    return torch.maximum(q * error, (q - 1) * error).mean()


def train(steps=24):
    net = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 3)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    quantiles = (0.1, 0.5, 0.9)
    totals = [0.0, 0.0, 0.0]
    for _ in range(steps):
        x = torch.randn(16, 5, device=device)
        y = x[:, 0] + 0.5 * torch.randn(16, device=device)
        prediction = net(x)
        terms = [pinball(prediction[:, i], y, q) for i, q in enumerate(quantiles)]
        optimizer.zero_grad()
        sum(terms).backward()
        optimizer.step()
        totals = [total + term for total, term in zip(totals, terms)]  # leak: holder=totals kind=graph lint=accumulate
    return [F.relu(total).item() / steps for total in totals]


print(train())
