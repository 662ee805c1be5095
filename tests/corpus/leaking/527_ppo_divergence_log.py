import torch
from torch import nn
from torch.distributions import Normal

device = "cuda" if torch.cuda.is_available() else "cpu"


class ActorCritic(nn.Module):
    def __init__(self, obs=4, act=2):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(obs, 16), nn.Tanh(), nn.Linear(16, act))
        self.v = nn.Sequential(nn.Linear(obs, 16), nn.Tanh(), nn.Linear(16, 1))
        self.log_std = nn.Parameter(-0.5 * torch.ones(act))

    def dist(self, obs):
        return Normal(self.pi(obs), self.log_std.exp())


ac = ActorCritic().to(device)
optimizer = torch.optim.Adam(ac.parameters(), lr=3e-4)
approx_kls, clip_fractions, value_losses = [], [], []
for update in range(7):
    with torch.no_grad():
        obs = torch.randn(32, 4, device=device)
        act = ac.dist(obs).sample()
        logp_old = ac.dist(obs).log_prob(act).sum(-1)
        adv, ret = torch.randn(32, device=device), torch.randn(32, device=device)
    for _ in range(4):
        logp = ac.dist(obs).log_prob(act).sum(-1)
        ratio = torch.exp(logp - logp_old)
        clipped = torch.clamp(ratio, 0.8, 1.2)
        value_loss = (ac.v(obs).squeeze(-1) - ret).pow(2).mean()
        loss = -torch.min(ratio * adv, clipped * adv).mean() + 0.5 * value_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        approx_kls.append((logp_old - logp).mean())  # leak: holder=approx_kls kind=graph lint=accumulate
        clip_fractions.append((ratio != clipped).float().mean().item())
        value_losses.append(value_loss.item())
print("kl", sum(approx_kls).item() / len(approx_kls))
