import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
base = nn.Linear(5, 1).to(device)
meta = torch.optim.Adam(base.parameters(), lr=1e-3)
fast = [p for p in base.parameters()]


def forward(weights, x):
    return nn.functional.linear(x, weights[0], weights[1])


for task in range(24):
    x = torch.randn(10, 5, device=device)
    y = x.sum(1, keepdim=True)
    inner = nn.functional.mse_loss(forward(fast, x), y)
    gradients = torch.autograd.grad(inner, fast, create_graph=True)
    fast = [w - 0.01 * g for w, g in zip(fast, gradients)]  # leak: holder=fast kind=graph
    outer = nn.functional.mse_loss(base(x), y)
    meta.zero_grad()
    outer.backward()
    meta.step()
print(float(outer))
