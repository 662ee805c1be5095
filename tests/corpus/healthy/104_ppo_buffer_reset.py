import torch
from torch import nn
from torch.distributions import Categorical

device = "cuda" if torch.cuda.is_available() else "cpu"


class RolloutBuffer:
    def __init__(self):
        self.observations, self.actions, self.log_probs, self.rewards = [], [], [], []

    def clear(self):
        del self.observations[:]
        del self.actions[:]
        del self.log_probs[:]
        del self.rewards[:]


buffer = RolloutBuffer()
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
for timestep in range(1, 121):
    observation = torch.randn(4, device=device)
    with torch.no_grad():
        distribution = Categorical(logits=policy(observation))
        action = distribution.sample()
    buffer.observations.append(observation)
    buffer.actions.append(action)
    buffer.log_probs.append(distribution.log_prob(action))
    buffer.rewards.append(1.0)
    if timestep % 8 == 0:
        states, actions, old = torch.stack(buffer.observations), torch.stack(buffer.actions), torch.stack(buffer.log_probs)
        for _ in range(2):
            ratio = (Categorical(logits=policy(states)).log_prob(actions) - old).exp()
            loss = -(ratio * torch.tensor(buffer.rewards, device=device)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        buffer.clear()
