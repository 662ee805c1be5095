import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def make_step(model, optimizer):
    total, count = 0.0, 0

    def step(x, y):
        nonlocal total, count
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = total + loss  # leak: holder=total kind=graph lint=accumulate
        count += 1
        return float(total) / count

    return step


model = nn.Linear(6, 1).to(device)
step = make_step(model, torch.optim.Adam(model.parameters()))
for _ in range(22):
    x = torch.randn(8, 6, device=device)
    average = step(x, x.sum(1, keepdim=True))
