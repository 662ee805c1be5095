import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6)).to(device)
critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
g_opt = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
c_opt = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
history = {"wasserstein": [], "penalty": []}
for iteration in range(8):
    for _ in range(5):
        real = torch.randn(8, 6, device=device)
        fake = generator(torch.randn(8, 4, device=device)).detach()
        mixed = torch.lerp(real, fake, torch.rand(8, 1, device=device)).requires_grad_()
        (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (gradient.norm(2, dim=1) - 1).square().mean()
        distance = critic(fake).mean() - critic(real).mean()
        c_opt.zero_grad()
        (distance + 10 * penalty).backward()
        c_opt.step()
    g_opt.zero_grad()
    g_loss = -critic(generator(torch.randn(8, 4, device=device))).mean()
    g_loss.backward()
    g_opt.step()
    history["wasserstein"].append(-distance.item())
    history["penalty"].append(penalty.item())
