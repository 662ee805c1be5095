import torch
from torch import nn
from torch.distributions import Categorical

device = "cuda" if torch.cuda.is_available() else "cpu"


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.saved_log_probs, self.entropies, self.rewards = [], [], []

    def forward(self, x):
        return torch.softmax(self.net(x), dim=-1)


policy = Policy().to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
running_reward = 0.0
for episode in range(24):
    state = torch.randn(4, device=device)
    for t in range(5):
        m = Categorical(policy(state))
        action = m.sample()
        policy.saved_log_probs.append(m.log_prob(action))
        policy.entropies.append(m.entropy())
        policy.rewards.append(float(action.item() == 1))
        state = torch.randn(4, device=device)
    running_reward = 0.9 * running_reward + 0.1 * sum(policy.rewards)
    loss = torch.stack([-p * r for p, r in zip(policy.saved_log_probs, policy.rewards)]).sum()
    loss = loss - 0.01 * torch.stack(policy.entropies).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del policy.saved_log_probs[:]
    del policy.entropies[:]
    del policy.rewards[:]
