import os
import tempfile

import torch
from torch import nn

path = os.path.join(tempfile.mkdtemp(), "last.pt")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(600, 2400), nn.ReLU(), nn.Linear(2400, 2400), nn.ReLU(), nn.Linear(2400, 10))
torch.save({"net": net.state_dict(), "epoch": 3}, path)

device = "cuda"
net = net.to(device)
saved = torch.load(path, map_location=device)
net.load_state_dict(saved["net"])
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
for epoch in range(saved["epoch"], 6):
    x = torch.randn(256, 600, device=device)
    loss = net(x).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(f"{epoch}: {loss.item():.5f}")
