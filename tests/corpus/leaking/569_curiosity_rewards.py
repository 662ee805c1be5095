import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Curiosity(nn.Module):
    def __init__(self, obs=4, width=12):
        super().__init__()
        self.encode = nn.Linear(obs, width)
        self.predict = nn.Linear(width + 1, width)

    def forward(self, obs, action, next_obs):
        target = self.encode(next_obs).detach()
        guess = self.predict(torch.cat([self.encode(obs), action], dim=1))
        return (guess - target).pow(2).mean(dim=1)


class RewardScaler:
    """Divides intrinsic rewards by the standard deviation of all rewards so far."""

    def __init__(self):
        self.rewards = []

    def __call__(self, reward):
        self.rewards.append(reward)  # leak: holder=rewards|scale kind=graph
        return reward.detach() / (torch.cat(self.rewards).detach().std() + 1e-8)


icm, scale = Curiosity().to(device), RewardScaler()
optimizer = torch.optim.Adam(icm.parameters(), lr=1e-3)
returns = []
for step in range(24):
    obs, next_obs = torch.randn(2, 8, 4, device=device)
    intrinsic = icm(obs, torch.randint(0, 2, (8, 1), device=device).float(), next_obs)
    optimizer.zero_grad()
    intrinsic.mean().backward()
    optimizer.step()
    returns.append(scale(intrinsic).sum().item())  # also: lint=accumulate
print(returns[-1])
