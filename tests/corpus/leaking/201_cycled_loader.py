import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(480, 10), torch.randn(480, 1)), batch_size=8, shuffle=True)
batches = itertools.cycle(loader)  # leak: holder=batches kind=tensor
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for iteration in range(40):
    x, y = next(batches)
    loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
