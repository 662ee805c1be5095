import torch
from torch import nn
from torch.distributions import Categorical

device = "cuda" if torch.cuda.is_available() else "cpu"


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.saved_log_probs = []
        self.rewards = []

    def act(self, state):
        distribution = Categorical(logits=self.net(state))
        action = distribution.sample()
        self.saved_log_probs.append(distribution.log_prob(action))  # leak: holder=saved_log_probs kind=graph lint=accumulate
        return action.item()


policy = Policy().to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(16):
    first = len(policy.saved_log_probs)
    for t in range(5):
        policy.act(torch.randn(4, device=device))
        policy.rewards.append(1.0)
    # forgot: del policy.saved_log_probs[:]
    loss = -torch.stack(policy.saved_log_probs[first:]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
