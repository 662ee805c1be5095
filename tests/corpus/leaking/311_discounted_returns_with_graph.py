import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class RewardNormaliser:
    def __init__(self, gamma=0.99):
        self.gamma = gamma
        self.ret = torch.zeros((), device=device)

    def __call__(self, reward):
        self.ret = self.ret * self.gamma + reward  # leak: holder=ret kind=graph
        return reward / (self.ret.detach().abs() + 1)


normalise = RewardNormaliser()
reward_model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1)).to(device)
optimizer = torch.optim.Adam(reward_model.parameters())
for step in range(20):
    reward = reward_model(torch.randn(3, 5, device=device)).mean()
    loss = -normalise(reward)  # also: lint=accumulate
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
