import torch
from torch import nn
from torch.distributions import Normal

device = "cuda" if torch.cuda.is_available() else "cpu"
KEYS = ("obs", "act", "logp", "rew")
pi = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.Adam(pi.parameters(), lr=3e-4)


def rollout(horizon=6):
    buffer = {key: [] for key in KEYS}
    for _ in range(horizon):
        obs = torch.randn(3, device=device)
        with torch.no_grad():
            dist = Normal(pi(obs), 0.5)
            act = dist.sample()
        for key, value in zip(KEYS, (obs, act, dist.log_prob(act).sum(), -act.pow(2).sum())):
            buffer[key].append(value)
    return {key: torch.stack(values) for key, values in buffer.items()}


for iteration in range(10):
    batch = rollout()
    advantage = batch["rew"] - batch["rew"].mean()
    for _ in range(3):
        logp = Normal(pi(batch["obs"]), 0.5).log_prob(batch["act"]).sum(-1)
        ratio = (logp - batch["logp"]).exp()
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
