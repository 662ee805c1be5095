import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
latest = {}


def remember(module, inputs, output):
    latest["activation"] = output.detach()


model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
model[1].register_forward_hook(remember)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sparsity = []
for step in range(40):
    x = torch.randn(10, 8, device=device)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sparsity.append((latest["activation"] == 0).float().mean().item())
