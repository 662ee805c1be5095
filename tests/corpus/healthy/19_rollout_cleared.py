import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
from torch.distributions import Categorical

policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
log_probs, rewards, returns = [], [], []
for episode in range(40):
    for t in range(6):
        distribution = Categorical(logits=policy(torch.randn(4, device=device)))
        action = distribution.sample()
        log_probs.append(distribution.log_prob(action))
        rewards.append(float(t))
    loss = -(torch.stack(log_probs).sum() * sum(rewards))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    returns.append(sum(rewards))
    log_probs.clear()
    rewards.clear()
