import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
G = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 8)).to(device)
D = nn.Sequential(nn.Linear(8, 20), nn.LeakyReLU(0.2), nn.Linear(20, 1)).to(device)
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.0, 0.9))
log = {"d": [], "g": [], "r1": []}
for it in range(32):
    real = torch.randn(10, 8, device=device)
    fake = G(torch.randn(10, 5, device=device)).detach()
    d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    if it % 4 == 0:
        real.requires_grad_(True)
        (grad,) = torch.autograd.grad(D(real).sum(), real, create_graph=True)
        r1 = grad.square().sum(1).mean()
        opt_d.zero_grad()
        (5 * r1).backward()
        opt_d.step()
        log["r1"].append(r1.item())
    g_loss = F.softplus(-D(G(torch.randn(10, 5, device=device)))).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    log["d"].append(d_loss.item())
    log["g"].append(g_loss.item())
