import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class ScoreMonitor:
    """Records the distribution of the scores of normal data."""

    def __init__(self):
        self.seen = torch.empty(0, device=device)

    def observe(self, scores):
        self.seen = torch.hstack((self.seen, scores.detach()))  # leak: holder=seen|monitor kind=larger

    def threshold(self, q=0.95):
        return torch.quantile(self.seen, q).item()


autoencoder = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16)).to(device)
optimizer = torch.optim.Adam(autoencoder.parameters(), lr=1e-3)
monitor = ScoreMonitor()
for step in range(28):
    x = torch.randn(64, 16, device=device)
    error = (autoencoder(x) - x).pow(2).mean(dim=1)
    optimizer.zero_grad()
    error.mean().backward()
    optimizer.step()
    monitor.observe(error)  # also:
print("alarm above", monitor.threshold())
