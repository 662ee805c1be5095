import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class PathLengthPenalty(nn.Module):
    def __init__(self, decay=0.01):
        super().__init__()
        self.decay = decay
        self.pl_mean = torch.zeros([], device=device)

    def forward(self, w, images):
        noise = torch.randn_like(images) / images[0].numel() ** 0.5
        (gradient,) = torch.autograd.grad((images * noise).sum(), w, create_graph=True)
        lengths = gradient.square().sum(dim=1).sqrt()
        penalty = (lengths - self.pl_mean.detach()).square().mean()
        self.pl_mean = self.pl_mean + self.decay * (lengths.mean() - self.pl_mean)  # leak: holder=pl_mean kind=graph lint=accumulate
        return penalty


mapping = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8)).to(device)
synthesis = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 27)).to(device)
path_length = PathLengthPenalty()
opt = torch.optim.Adam([*mapping.parameters(), *synthesis.parameters()], lr=2e-3, betas=(0.0, 0.99))
for step in range(20):
    w = mapping(torch.randn(4, 4, device=device))
    images = synthesis(w).view(4, 3, 3, 3)
    loss = nn.functional.softplus(-images.mean((1, 2, 3))).mean() + 2 * path_length(w, images)
    opt.zero_grad()
    loss.backward()
    opt.step()
