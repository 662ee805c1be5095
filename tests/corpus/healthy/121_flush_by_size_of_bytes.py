import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class GradientLog:
    """Collects gradients until there are enough for a histogram."""

    def __init__(self, limit):
        self.limit, self.parts, self.histograms = limit, [], []

    def add(self, model):
        self.parts.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        if sum(part.numel() for part in self.parts) > self.limit:
            self.histograms.append(torch.histc(torch.cat(self.parts), bins=5).tolist())
            self.parts = []


log = GradientLog(limit=200)
model = nn.Linear(12, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(30):
    loss = model(torch.randn(6, 12, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    log.add(model)
    optimizer.step()
