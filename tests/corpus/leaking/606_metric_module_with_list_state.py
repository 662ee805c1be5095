import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self._defaults = {}

    def add_state(self, name, default):
        setattr(self, name, default() if callable(default) else default)
        self._defaults[name] = default

    def reset(self):
        for name, default in self._defaults.items():
            setattr(self, name, default() if callable(default) else default)

    def forward(self, *args):
        self.update(*args)
        return self.compute()


class AveragePrecision(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("scores", default=list)

    def update(self, scores):
        self.scores.append(scores)  # leak: holder=scores kind=tensor|graph

    def compute(self):
        return torch.stack([each.float().mean() for each in self.scores]).mean()


model, metric = nn.Linear(10, 4).to(device), AveragePrecision().to(device)
model.eval()
for batch in range(40):
    with torch.no_grad():
        scores = model(torch.randn(16, 10, device=device)).softmax(-1)
    value = metric(scores)
print(value.item())
