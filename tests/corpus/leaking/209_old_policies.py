import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence

device = "cuda" if torch.cuda.is_available() else "cpu"


class TrustRegion:
    def __init__(self, observations):
        self.observations = observations
        self.policy = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.distributions = []

    def update(self):
        current = Categorical(logits=self.policy(self.observations))
        loss = -current.entropy().mean()
        if self.distributions:
            old = Categorical(logits=self.distributions[-1].logits.detach())
            loss = loss + kl_divergence(old, current).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.distributions.append(current)  # leak: holder=distributions kind=graph lint=accumulate


region = TrustRegion(torch.randn(12, 5, device=device))
for _ in range(20):
    region.update()
