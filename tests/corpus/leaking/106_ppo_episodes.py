from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributions import Normal

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Episode:
    log_probs: list = field(default_factory=list)
    rewards: list = field(default_factory=list)


class PPO:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
        self.log_std = nn.Parameter(torch.zeros(1, device=device))
        self.optimizer = torch.optim.Adam([*self.policy.parameters(), self.log_std], lr=3e-4)
        self.episodes = []

    def rollout(self, length=5):
        episode = Episode()
        for _ in range(length):
            distribution = Normal(self.policy(torch.randn(3, device=device)), self.log_std.exp())
            action = distribution.sample()
            episode.log_probs.append(distribution.log_prob(action))
            episode.rewards.append(-action.pow(2).item())
        self.episodes.append(episode)  # leak: holder=episodes kind=graph
        return episode

    def update(self, episode):
        returns = torch.tensor(episode.rewards, device=device).flip(0).cumsum(0).flip(0)
        loss = -(torch.cat(episode.log_probs) * returns).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


agent = PPO()
for iteration in range(22):
    agent.update(agent.rollout())
