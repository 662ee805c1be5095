import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SynapticIntelligence:
    """Measures how much each weight has contributed to lowering the loss."""

    def __init__(self, model):
        self.model = model
        self.path = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        self.previous = {n: p.detach().clone() for n, p in model.named_parameters()}

    def after_step(self):
        for n, p in self.model.named_parameters():
            if p.grad is not None:
                self.path[n] = self.path[n] - p.grad * (p - self.previous[n])  # leak: holder=path|si kind=graph lint=accumulate
            self.previous[n] = p.detach().clone()


model = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
si = SynapticIntelligence(model)
for task in range(2):
    for _ in range(12):
        x = torch.randn(12, 8, device=device) + task
        y = (x[:, task] > task).long()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        si.after_step()
