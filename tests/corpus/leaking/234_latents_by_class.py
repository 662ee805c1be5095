import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu, self.log_var, self.decode = nn.Linear(12, 3), nn.Linear(12, 3), nn.Linear(3, 12)

    def forward(self, x):
        mu, log_var = self.mu(x), self.log_var(x)
        z = mu + torch.randn_like(mu) * (0.5 * log_var).exp()
        return self.decode(z), mu, log_var


def train(model, optimizer, latents, steps):
    for _ in range(steps):
        x, labels = torch.rand(6, 12, device=device), torch.randint(0, 3, (6,))
        recon, mu, log_var = model(x)
        kl = -0.5 * (1 + log_var - mu.square() - log_var.exp()).sum(1).mean()
        loss = (recon - x).square().sum(1).mean() + kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for label, point in zip(labels.tolist(), mu):
            latents[label] += [point]  # leak: holder=latents kind=graph lint=accumulate


model = VAE().to(device)
latents = {0: [], 1: [], 2: []}
train(model, torch.optim.Adam(model.parameters()), latents, 20)
print({label: len(points) for label, points in latents.items()})
