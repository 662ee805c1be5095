import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)


def keep(module, inputs, output, seen=[]):
    seen.append(output.detach())  # leak: holder=seen kind=tensor


net[0].register_forward_hook(keep)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(40):
    loss = net(torch.randn(8, 10, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
