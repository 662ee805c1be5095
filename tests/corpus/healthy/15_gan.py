import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
g_opt = torch.optim.Adam(generator.parameters(), lr=1e-4)
c_opt = torch.optim.Adam(critic.parameters(), lr=1e-4)
log = {"g": [], "c": []}
for step in range(50):
    real = torch.randn(6, 8, device=device)
    fake = generator(torch.randn(6, 4, device=device))
    c_loss = critic(fake.detach()).mean() - critic(real).mean()
    c_opt.zero_grad()
    c_loss.backward()
    c_opt.step()
    if step % 5 == 0:
        g_loss = -critic(fake).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        log["g"].append(g_loss.item())
    log["c"].append(c_loss.item())
