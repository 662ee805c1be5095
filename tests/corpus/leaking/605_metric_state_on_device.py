import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MeanSquaredError:
    def __init__(self):
        self.preds, self.target = [], []

    def update(self, preds, target):
        self.preds.append(preds)  # leak: holder=preds|target kind=tensor|graph
        self.target.append(target)  # also:

    def compute(self):
        return (torch.cat(self.preds) - torch.cat(self.target)).square().mean()

    def reset(self):
        self.preds.clear()
        self.target.clear()


metric = MeanSquaredError()
net = nn.Linear(12, 3).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(40):
    x, y = torch.randn(8, 12, device=device), torch.randn(8, 3, device=device)
    out = net(x)
    loss = nn.functional.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metric.update(out.detach(), y)
    if step % 10 == 9:
        print(step, metric.compute().item())
