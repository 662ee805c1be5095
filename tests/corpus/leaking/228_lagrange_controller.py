import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class PIDMultiplier:
    def __init__(self, target, kp=0.1, ki=0.01):
        self.target, self.kp, self.ki = target, kp, ki
        self.integral = 0.0

    def __call__(self, cost):
        error = cost - self.target
        self.integral = self.integral + error  # leak: holder=integral kind=graph
        return max(0.0, self.kp * error.item() + self.ki * float(self.integral))


policy = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
controller = PIDMultiplier(target=0.2)
for update in range(20):
    actions = policy(torch.randn(10, 6, device=device))
    cost = actions.abs().mean()
    weight = controller(cost)  # also: lint=accumulate
    loss = -actions[:, 0].mean() + weight * cost
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
