import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class ToDevice:
    """Moves batches to the device, and stores them so that they can be replayed."""

    def __init__(self, loader):
        self.loader, self.delivered = loader, []

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            batch = tuple(each.to(device, copy=True) for each in batch)
            self.delivered.append(batch)  # leak: holder=delivered kind=tensor
            yield batch


data = TensorDataset(torch.randn(120, 6), torch.randn(120, 1))
loader = ToDevice(DataLoader(data, batch_size=10, shuffle=True))
model = nn.Linear(6, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
