"""Evaluate with gradients enabled and with outdated APIs. The summed loss keeps the activations of every batch alive, so the
evaluation runs out of memory on a GPU on which the training fits.

legroom run --gpu 96MiB examples/recipes/evaluation_no_grad/original.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
train_loader = DataLoader(data, batch_size=225)
test_loader = DataLoader(data, batch_size=64)

network = nn.Sequential(
    nn.Linear(64, 8192), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8192, 10), nn.LogSoftmax(1)
).cuda()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for data, target in train_loader:
    optimizer.zero_grad()
    F.nll_loss(network(data.cuda()), target.cuda()).backward()
    optimizer.step()

test_loss, correct = 0, 0
for data, target in test_loader:  # `with torch.no_grad():` is missing, and so is `network.eval()`
    data, target = data.cuda(), target.cuda()
    output = network(data)
    test_loss += F.nll_loss(output, target, size_average=False)
    pred = output.data.max(1, keepdim=True)[1]
    correct += pred.eq(target.data.view_as(pred)).sum()
print(f"loss {test_loss.item() / 1797:.2f}, accuracy {correct.item() / 1797:.0%}")
