import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class RunningMeanStd:
    def __init__(self):
        self.mean = torch.zeros(1, device=device)
        self.var = torch.ones(1, device=device)
        self.count = 1e-4

    def update(self, x):
        batch_mean, batch_var, n = x.mean(), x.var(), x.numel()
        delta = batch_mean - self.mean
        total = self.count + n
        self.mean = self.mean + delta * n / total
        m2 = self.var * self.count + batch_var * n + delta**2 * self.count * n / total
        self.var, self.count = m2 / total, total


policy, value = nn.Linear(4, 2).to(device), nn.Linear(4, 1).to(device)
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=1e-3)
stats = RunningMeanStd()
for step in range(34):
    obs = torch.randn(16, 4, device=device)
    reward = torch.randn(16, device=device) * 5 + 2
    stats.update(reward)
    normed = (reward - stats.mean) / stats.var.sqrt()
    dist = torch.distributions.Categorical(logits=policy(obs))
    action = dist.sample()
    v = value(obs).squeeze(1)
    advantage = normed - v.detach()
    loss = -(dist.log_prob(action) * advantage).mean() + (v - normed).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
