import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class CoresetMemory:
    """Keeps the first sample of each class as its exemplar."""

    def __init__(self):
        self.exemplars = {}

    def observe(self, x, y):
        for row, label in zip(x, y.tolist()):
            if label not in self.exemplars:
                self.exemplars[label] = row.clone()

    def batch(self):
        labels = sorted(self.exemplars)
        return torch.stack([self.exemplars[k] for k in labels]), torch.tensor(labels, device=device)


memory = CoresetMemory()
model = nn.Sequential(nn.Linear(9, 27), nn.ReLU(), nn.Linear(27, 6)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(42):
    x, y = torch.randn(5, 9, device=device), torch.randint(0, min(6, 2 + step // 2), (5,), device=device)
    memory.observe(x, y)
    old_x, old_y = memory.batch()
    loss = F.cross_entropy(model(x), y) + 0.3 * F.cross_entropy(model(old_x), old_y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
