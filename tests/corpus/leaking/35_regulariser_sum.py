import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3)).to(device)
optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
penalty = torch.zeros((), device=device)
for step in range(18):
    x = torch.randn(10, 12, device=device)
    for layer in layers:
        x = torch.relu(layer(x))
        penalty = penalty + x.abs().mean()  # leak: holder=penalty kind=graph lint=accumulate
    loss = x.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(penalty.item())
