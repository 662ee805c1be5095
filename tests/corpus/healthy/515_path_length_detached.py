import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
mapping = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8)).to(device)
synthesis = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 27)).to(device)
opt = torch.optim.Adam([*mapping.parameters(), *synthesis.parameters()], lr=2e-3, betas=(0.0, 0.99))
mean_path_length = torch.zeros((), device=device)
for step in range(32):
    w = mapping(torch.randn(4, 4, device=device))
    images = synthesis(w)
    loss = nn.functional.softplus(-images.mean(1)).mean()
    if step % 4 == 0:  # lazy regularisation
        noise = torch.randn_like(images) / 27**0.5
        (gradient,) = torch.autograd.grad((images * noise).sum(), w, create_graph=True)
        lengths = gradient.square().sum(dim=1).sqrt()
        loss = loss + 2 * (lengths - mean_path_length).square().mean()
        mean_path_length = mean_path_length.lerp(lengths.mean().detach(), 0.01)
    opt.zero_grad()
    loss.backward()
    opt.step()
