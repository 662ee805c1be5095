import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class History:
    def __init__(self, limit=8):
        self.limit, self.items = limit, []

    def add(self, item):
        self.items.append(item)
        if len(self.items) > self.limit:
            del self.items[: self.limit // 2]


history = History()
model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(34):
    prediction = model(torch.randn(6, 7, device=device))
    loss = prediction.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.add(prediction.detach())
