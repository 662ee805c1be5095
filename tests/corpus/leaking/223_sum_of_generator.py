import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def validation_loss(model, criterion, loader):
    model.eval()
    total = sum(criterion(model(x.to(device)), y.to(device)) for x, y in loader)  # leak: holder=total|sum kind=graph lint=no-grad,accumulate
    return (total / len(loader)).item()


data = TensorDataset(torch.randn(300, 12), torch.randint(0, 4, (300,)))
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
print(validation_loss(model, nn.CrossEntropyLoss(), DataLoader(data, batch_size=12)))
