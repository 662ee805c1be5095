import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class PlateauDetector:
    def __init__(self, window=8, tolerance=1e-3):
        self.window, self.tolerance, self.recent = window, tolerance, []

    def stuck(self, loss):
        self.recent.append(loss.detach())
        del self.recent[: -self.window]
        if len(self.recent) < self.window:
            return False
        values = torch.stack(self.recent)
        return bool(values.max() - values.min() < self.tolerance)


model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
detector, drops = PlateauDetector(), 0
for step in range(44):
    x = torch.randn(10, 6, device=device)
    loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if detector.stuck(loss):
        drops += 1
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
print("drops", drops)
