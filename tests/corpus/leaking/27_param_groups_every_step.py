import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(10, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(24):
    scale = nn.Parameter(torch.ones(10, device=device))
    optimizer.add_param_group({"params": [scale]})  # leak: holder=param_groups|optimizer kind=tensor
    x = torch.randn(5, 10, device=device)
    loss = (model(x) * scale).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
