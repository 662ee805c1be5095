import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(400, 10), torch.randn(400, 1)), batch_size=5)
model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = 0
for i, (x, y) in enumerate(loader, 1):
    total = total + nn.functional.mse_loss(model(x.to(device)), y.to(device))  # lint: micro-batches
    if i % 8 == 0:
        (total / 8).backward()
        optimizer.step()
        optimizer.zero_grad()
        total = 0
