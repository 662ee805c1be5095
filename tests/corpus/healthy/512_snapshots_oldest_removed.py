import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SnapshotKeeper:
    def __init__(self, limit=3):
        self.limit = limit
        self.snapshots = []

    def take(self, model):
        self.snapshots.append({k: v.clone() for k, v in model.state_dict().items()})
        while len(self.snapshots) > self.limit:
            del self.snapshots[0]

    def averaged(self):
        return {k: torch.stack([s[k] for s in self.snapshots]).mean(0) for k in self.snapshots[0]}


keeper = SnapshotKeeper()
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(36):
    x, y = torch.randn(8, 10, device=device), torch.randint(0, 2, (8,), device=device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if step % 2:
        keeper.take(model)
model.load_state_dict(keeper.averaged())
