import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Meters:
    def __init__(self, *names):
        for name in names:
            setattr(self, name, 0.0)

    def update(self, **values):
        for name, value in values.items():
            setattr(self, name, getattr(self, name) + value)  # leak: holder=meters|loss kind=graph


meters = Meters("loss", "count")
model = nn.Linear(8, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(22):
    x, y = torch.randn(6, 8, device=device), torch.randint(0, 2, (6,), device=device)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    meters.update(loss=loss, count=len(x))  # also: lint=accumulate
print(float(meters.loss) / meters.count)
