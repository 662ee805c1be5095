import copy

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Linear(24, 24).to(device)
optimizer = torch.optim.Adam(net.parameters())
undo = {}
for step in range(40):
    undo[step] = copy.deepcopy(optimizer.state_dict())  # leak: holder=undo kind=tensor
    loss = net(torch.randn(8, 24, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
