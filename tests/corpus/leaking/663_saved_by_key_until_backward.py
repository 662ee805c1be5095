import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
saved, number = {}, 0


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        global number
        number += 1
        ctx.number = number
        saved[number] = x.detach().clone()  # leak: holder=saved kind=tensor
        return x.square()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * saved.pop(ctx.number) * gradient


net = nn.Linear(12, 6).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(60):
    loss = Scale.apply(net(torch.randn(8, 12, device=device))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        Scale.apply(net(torch.randn(8, 12, device=device)))
