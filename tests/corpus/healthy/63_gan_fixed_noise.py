import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
G = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 8)).to(device)
D = nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
bce = nn.BCEWithLogitsLoss()
fixed = torch.randn(4, 6, device=device)
G_losses, D_losses, samples = [], [], []
for i in range(20):
    fake = G(torch.randn(8, 6, device=device))
    d_loss = bce(D(torch.randn(8, 8, device=device)), torch.ones(8, 1, device=device)) + bce(D(fake.detach()), torch.zeros(8, 1, device=device))
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    g_loss = bce(D(fake), torch.ones(8, 1, device=device))
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    G_losses.append(g_loss.item())
    D_losses.append(d_loss.item())
    if i % 5 == 0:
        with torch.no_grad():
            samples.append(G(fixed).cpu().numpy())
