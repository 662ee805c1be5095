import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def forever(loader):
    while True:
        yield from loader


loader = DataLoader(TensorDataset(torch.randn(64, 10), torch.randn(64, 1)), batch_size=8, shuffle=True)
batches = forever(loader)
model = nn.Linear(10, 1).to(device)
optimizer = torch.optim.Adam(model.parameters())
for iteration in range(30):
    x, y = next(batches)
    loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
