import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Logger:
    def __init__(self, every):
        self.every, self.pending, self.lines = every, [], []

    def add(self, loss):
        self.pending.append(loss)
        if len(self.pending) == self.every:
            self.lines.append(torch.stack(self.pending).mean().item())
            self.pending = []


logger = Logger(every=3)
model = nn.Linear(7, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(24):
    loss = model(torch.randn(6, 7, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logger.add(loss)
