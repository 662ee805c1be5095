import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
gradients = {"fc1": [], "fc2": []}


def keep(name):
    def hook(module, grad_input, grad_output):
        gradients[name].append(grad_output[0])  # leak: holder=gradients kind=tensor lint=hook-append

    return hook


model = nn.Sequential()
model.add_module("fc1", nn.Linear(10, 20))
model.add_module("fc2", nn.Linear(20, 2))
model.to(device)
for name, layer in model.named_children():
    layer.register_full_backward_hook(keep(name))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(24):
    x = torch.randn(9, 10, device=device)
    loss = model(x).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
