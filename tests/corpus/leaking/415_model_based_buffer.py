import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Dynamics(nn.Module):
    def __init__(self, obs=5, act=2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs + act, 32), nn.ReLU(), nn.Linear(32, obs))

    def forward(self, obs, action):
        return obs + self.net(torch.cat([obs, action], dim=-1))


class Agent:
    def __init__(self):
        self.dynamics = Dynamics().to(device)
        self.opt = torch.optim.Adam(self.dynamics.parameters())
        self.buffer = {"obs": [], "next_obs": []}

    def act_and_store(self, obs, action):
        imagined = self.dynamics(obs, action)
        self.buffer["obs"].append(obs)  # also:
        self.buffer["next_obs"].append(imagined)  # leak: holder=buffer kind=graph lint=accumulate
        return imagined

    def update(self, imagined, real):
        loss = (imagined - real).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


agent = Agent()
for step in range(24):
    obs, action = torch.randn(16, 5, device=device), torch.randn(16, 2, device=device)
    imagined = agent.act_and_store(obs, action)
    agent.update(imagined, torch.tanh(obs))
