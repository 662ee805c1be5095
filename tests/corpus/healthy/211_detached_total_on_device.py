import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Average:
    def __init__(self):
        self.total = torch.zeros((), device=device)
        self.count = 0

    def update(self, value, n):
        self.total = self.total + value.detach() * n
        self.count += n

    def compute(self):
        return (self.total / self.count).item()


data = TensorDataset(torch.randn(150, 7), torch.randn(150, 1))
model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    average = Average()
    for x, y in DataLoader(data, batch_size=15):
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(loss, len(x))
    print(average.compute())
