import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def predict(model, loader):
    model.eval()
    predictions = []
    for (x,) in loader:
        predictions.extend(model(x.to(device)))  # leak: holder=predictions kind=graph lint=accumulate,no-grad
    return predictions


model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 1)).to(device)
print(len(predict(model, DataLoader(TensorDataset(torch.randn(200, 6)), batch_size=10))))
