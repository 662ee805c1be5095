import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Linear(10, 10).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(40):
    x = torch.randn(8, 10, device=device)
    net.register_forward_hook(lambda module, inputs, output, x=x: None)  # leak: holder=x|net|_forward_hooks kind=tensor
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
