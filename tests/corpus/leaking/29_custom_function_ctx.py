import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
stash = []


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        stash.append(ctx)  # leak: holder=stash kind=graph|tensor
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.x * grad


model = nn.Linear(6, 6).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(24):
    x = torch.randn(30, 6, device=device)
    loss = Square.apply(model(x)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
