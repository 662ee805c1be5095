import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(14, 6).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def scaled(factor):
    def hook(grad):
        return grad * factor

    return hook


for step in range(24):
    x = torch.randn(8, 14, device=device)
    importance = torch.rand(6, 14, device=device)
    model.weight.register_hook(scaled(importance))  # leak: holder=weight|_backward_hooks|factor|model kind=tensor
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
