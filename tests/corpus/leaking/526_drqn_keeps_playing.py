import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class DRQN(nn.Module):
    def __init__(self, n_obs=3, n_actions=2, width=12):
        super().__init__()
        self.gru = nn.GRUCell(n_obs, width)
        self.out = nn.Linear(width, n_actions)
        self.width = width

    def forward(self, obs, h):
        h = self.gru(obs, h)
        return self.out(h), h


class Agent:
    def __init__(self):
        self.net = DRQN().to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=5e-4)
        self.h = torch.zeros(1, self.net.width, device=device)

    def act(self, obs):
        q, self.h = self.net(obs, self.h)  # leak: holder=h|agent kind=graph lint=hidden-state
        return q.argmax(dim=1).item()

    def learn(self, obs, actions, rewards):
        h = torch.zeros(obs.size(0), self.net.width, device=device)
        q, _ = self.net(obs, h)
        loss = (q.gather(1, actions) - rewards).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


agent = Agent()
for t in range(30):
    observation = torch.randn(1, 3, device=device)
    action = agent.act(observation)
    agent.learn(
        torch.randn(6, 3, device=device),
        torch.randint(0, 2, (6, 1), device=device),
        torch.rand(6, 1, device=device),
    )
