import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
dynamics = nn.GRUCell(6, 24).to(device)
decoder = nn.Linear(24, 6).to(device)
optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-3)


class Agent:
    def __init__(self):
        self.belief = torch.zeros(3, 24, device=device)

    def observe(self, observation):
        self.belief = dynamics(observation, self.belief)  # leak: holder=belief kind=graph lint=hidden-state
        return decoder(self.belief.detach())


agent = Agent()
for t in range(20):
    observation = torch.randn(3, 6, device=device)
    loss = (agent.observe(observation) - observation).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
