import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(6, 1).to(device)
optimizer = torch.optim.LBFGS(model.parameters(), history_size=30, max_iter=4)
x, y = torch.randn(50, 6, device=device), torch.randn(50, 1, device=device)


def closure():
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean() + 1e-3 * model.weight.square().sum()
    loss.backward()
    return loss


curve = []
for step in range(30):
    loss = optimizer.step(closure)
    curve.append(loss.item())
