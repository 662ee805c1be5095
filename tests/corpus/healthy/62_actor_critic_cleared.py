import torch
from torch import nn
from torch.distributions import Categorical

device = "cuda" if torch.cuda.is_available() else "cpu"


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pi, self.v = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)
        self.reset_memory()

    def reset_memory(self):
        self.log_probs, self.values, self.rewards = [], [], []

    def act(self, state):
        hidden = torch.relu(self.body(state))
        distribution = Categorical(logits=self.pi(hidden))
        action = distribution.sample()
        self.log_probs.append(distribution.log_prob(action))
        self.values.append(self.v(hidden))
        return action.item()

    def learn(self, optimizer):
        values = torch.cat(self.values)
        returns = torch.tensor(self.rewards, device=device)
        loss = (-torch.stack(self.log_probs) * (returns - values.detach())).sum() + (values - returns).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        self.reset_memory()
        return loss.item()


agent = Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters())
history = []
for episode in range(20):
    for _ in range(5):
        agent.act(torch.randn(4, device=device))
        agent.rewards.append(1.0)
    history.append(agent.learn(optimizer))
