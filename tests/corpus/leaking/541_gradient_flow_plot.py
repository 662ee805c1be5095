import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ave_grads, max_grads, layers = [], [], []


def plot_grad_flow(named_parameters):
    """Collect gradient statistics after loss.backward(), to plot them at the end."""
    for n, p in named_parameters:
        if p.requires_grad and "bias" not in n:
            layers.append(n)
            ave_grads.append(p.grad.abs().mean())  # leak: holder=ave_grads|max_grads kind=tensor
            max_grads.append(p.grad.abs().max())  # also:


net = nn.Sequential(nn.Linear(14, 14), nn.Tanh(), nn.Linear(14, 14), nn.Tanh(), nn.Linear(14, 1)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for it in range(24):
    x = torch.randn(10, 14, device=device)
    loss = (net(x).squeeze(1) - x.mean(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    plot_grad_flow(net.named_parameters())
    optimizer.step()
print(len(layers), max(max_grads).item())
