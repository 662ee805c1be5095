import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class ConditionalGaussian(nn.Module):
    def __init__(self, x_dim=3, theta_dim=2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(x_dim, 16), nn.ReLU(), nn.Linear(16, 2 * theta_dim))

    def sample(self, n, x):
        mean, log_std = self.net(x).chunk(2, dim=-1)
        return mean + log_std.exp() * torch.randn(n, mean.size(-1), device=x.device)


def within_prior(theta):
    return (theta.abs() < 1.0).all(dim=1)


def sample_posterior(estimator, x, num_samples):
    """Draw samples until enough of them are within the support of the prior."""
    accepted, num_remaining = [], num_samples
    while num_remaining > 0:
        candidates = estimator.sample(4, x)  # lint: no-grad
        keep = candidates[within_prior(candidates)]
        accepted.append(keep)  # leak: holder=accepted kind=graph lint=accumulate
        num_remaining -= len(keep)
    return torch.cat(accepted)[:num_samples]


torch.manual_seed(3)
estimator = ConditionalGaussian().to(device)
estimator.net[2].weight.data.mul_(0.1)
samples = sample_posterior(estimator, torch.zeros(1, 3, device=device), 60)
print(samples.shape, samples.mean(0).tolist())
