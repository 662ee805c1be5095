import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

device = "cuda" if torch.cuda.is_available() else "cpu"


def critic_step(critic, optimizer, real, fake):
    spectral_norm(critic[0])  # leak: holder=parametrizations|critic kind=tensor|graph
    loss = (critic(fake) - critic(real)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


critic = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
curve = [critic_step(critic, optimizer, torch.randn(5, 6, device=device), torch.rand(5, 6, device=device)) for _ in range(18)]
