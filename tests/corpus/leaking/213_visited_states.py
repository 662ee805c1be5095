import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Explorer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.visited = set()
        self.position = torch.zeros(4, device=device)

    def novelty(self, state):
        nearest = min(((state - other).norm().item() for other in self.visited), default=1.0)
        self.visited.add(state)  # leak: holder=visited kind=tensor
        return nearest

    def step(self):
        state = self.position + torch.randn(4, device=device)
        predicted = self.model(self.position)
        loss = (predicted - state).square().mean() * self.novelty(state)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.position = state


explorer = Explorer()
for _ in range(24):
    explorer.step()
