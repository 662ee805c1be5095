import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
layers = nn.ModuleList()
for _ in range(6):
    layers.append(nn.Linear(8, 8))
layers.to(device)
optimizer = torch.optim.Adam(layers.parameters())
for step in range(26):
    x = torch.randn(4, 8, device=device)
    outputs = []
    for layer in layers:
        x = torch.relu(layer(x))
        outputs.append(x)
    loss = sum(output.square().mean() for output in outputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
