import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def simulate(controller, start, steps=5, dt=0.05):
    states, x = [start], start
    for _ in range(steps):
        force = controller(x)
        velocity = x[:, 1:] + dt * force
        x = torch.cat([x[:, :1] + dt * velocity, velocity], dim=1)
        states.append(x)
    return torch.stack(states, dim=1)


def optimise(iterations=20):
    controller = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 1)).to(device)
    optimizer = torch.optim.Adam(controller.parameters(), lr=1e-2)
    saved = {"trajectory": [], "cost": []}
    for _ in range(iterations):
        trajectory = simulate(controller, torch.randn(4, 2, device=device))
        cost = trajectory[:, -1].pow(2).sum(dim=1).mean()
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
        saved["trajectory"].append(trajectory)  # leak: holder=saved kind=graph lint=accumulate
        saved["cost"].append(cost.item())
    return saved


runs = optimise()
print(runs["cost"][0], "->", runs["cost"][-1])
