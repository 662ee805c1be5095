import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class OnPlateau:
    def __init__(self, optimizer, patience=5, factor=0.5):
        self.optimizer, self.patience, self.factor = optimizer, patience, factor
        self.seen = []

    def step(self, metric):
        self.seen.append(metric)  # leak: holder=seen kind=graph
        recent = self.seen[-self.patience :]
        if len(recent) == self.patience and min(recent) is recent[0]:
            for group in self.optimizer.param_groups:
                group["lr"] *= self.factor


model = nn.Sequential(nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = OnPlateau(optimizer)
for epoch in range(22):
    loss = model(torch.randn(12, 9, device=device)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step(loss)  # also: lint=accumulate
