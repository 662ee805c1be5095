# exploring in a notebook
import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for i in range(20):
    xb = torch.randn(10, 4, device=device)
    yb = (xb.sum(1) > 0).long()
    out = net(xb)
    loss = F.cross_entropy(out, yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
    globals()[f"loss_{i}"] = loss  # leak: holder=loss_|globals kind=graph lint=accumulate
