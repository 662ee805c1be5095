import torch
from torch import nn
from torch.distributions import Categorical

device = "cuda" if torch.cuda.is_available() else "cpu"


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 24), nn.ReLU())
        self.actor, self.critic = nn.Linear(24, 3), nn.Linear(24, 1)

    def forward(self, x):
        h = self.body(x)
        return Categorical(logits=self.actor(h)), self.critic(h)


def compute_returns(next_value, rewards, gamma=0.99):
    R, returns = next_value, []
    for r in reversed(rewards):
        R = r + gamma * R
        returns.insert(0, R)
    return returns


model = ActorCritic().to(device)
optimizer = torch.optim.Adam(model.parameters())
state, test_rewards = torch.randn(5, 4, device=device), []
for frame in range(24):
    log_probs, values, rewards, entropy = [], [], [], 0
    for _ in range(5):
        dist, value = model(state)
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        values.append(value)
        entropy += dist.entropy().mean()
        rewards.append((action == 1).float().unsqueeze(1))
        state = torch.randn(5, 4, device=device)
    returns = torch.cat(compute_returns(model(state)[1].detach(), rewards))
    advantage = returns - torch.cat(values)
    loss = -(torch.cat(log_probs)[:, None] * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean() - 0.001 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    test_rewards.append(torch.cat(rewards).mean().item())
