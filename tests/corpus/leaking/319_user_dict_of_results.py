from collections import UserDict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Results(UserDict):
    def __setitem__(self, key, value):
        if key in self.data:
            raise KeyError(f"{key} is there already")
        self.data[key] = value  # leak: holder=data|results kind=graph


def evaluate(model, loader):
    model.eval()
    results = Results()
    for index, (x,) in enumerate(loader):
        results[index] = model(x.to(device))  # also: lint=accumulate,no-grad
    return results


model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
print(len(evaluate(model, DataLoader(TensorDataset(torch.randn(220, 8)), batch_size=10))))
