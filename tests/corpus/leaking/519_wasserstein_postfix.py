import torch
from torch import nn, optim

cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
z_dim, n_critic = 6, 2
G = nn.Sequential(nn.Linear(z_dim, 24), nn.ReLU(), nn.Linear(24, 10)).to(device)
D = nn.Sequential(nn.Linear(10, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1)).to(device)
opt_g = optim.RMSprop(G.parameters(), lr=5e-5)
opt_d = optim.RMSprop(D.parameters(), lr=5e-5)
epoch_d_loss = torch.zeros((), device=device)
epoch_g_loss = 0.0

for batch_no in range(24):
    real = torch.randn(8, 10, device=device)
    for _ in range(n_critic):
        fake = G(torch.randn(8, z_dim, device=device)).detach()
        d_loss = D(fake).mean() - D(real).mean()
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        for p in D.parameters():
            p.data.clamp_(-0.01, 0.01)
    g_loss = -D(G(torch.randn(8, z_dim, device=device))).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    epoch_d_loss = torch.add(epoch_d_loss, d_loss)  # leak: holder=epoch_d_loss kind=graph lint=accumulate
    epoch_g_loss += g_loss.item()
print(f"D {epoch_d_loss.item() / 24:.4f} G {epoch_g_loss / 24:.4f}")
