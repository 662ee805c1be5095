import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Regularised(nn.Module):
    """Collects the penalties of all layers in a list that each forward pass resets."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.penalties = []

    def forward(self, x):
        self.penalties = []
        for layer in self.layers:
            x = torch.relu(layer(x))
            self.penalties.append(x.abs().mean())
        return x


model = Regularised().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
total = 0.0
for step in range(24):
    x = torch.randn(6, 8, device=device)
    loss = (model(x) - x).square().mean() + 0.01 * sum(model.penalties)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += float(loss)
