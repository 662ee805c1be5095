import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
w = torch.randn(10, 1, device=device, requires_grad=True)
b = torch.zeros(1, device=device, requires_grad=True)
loss_history = []
for epoch in range(40):
    x = torch.randn(20, 10, device=device)
    y = x.sum(dim=1, keepdim=True)
    loss = ((x @ w + b - y) ** 2).mean()
    loss.backward()
    w.data -= 0.01 * w.grad.data
    b.data -= 0.01 * b.grad.data
    w.grad = None
    b.grad = None
    loss_history.append(loss)  # leak: holder=loss_history kind=graph lint=accumulate
print(loss_history[-1].item())
