import torch
from torch import nn


class Probe(nn.Module):
    seen = []

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        y = torch.relu(self.linear(x))
        Probe.seen.append(y)  # leak: holder=seen kind=graph lint=accumulate
        return y


device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(Probe(16), nn.Linear(16, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(20):
    x = torch.randn(20, 16, device=device)
    loss = model(x).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
