"""Evaluate with `legroom.evaluate`, which disables gradients, selects evaluation mode, and splits a batch that does not
fit.

legroom run --gpu 96MiB examples/recipes/evaluation_no_grad/improved.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import legroom

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
train_loader = DataLoader(data, batch_size=225)
test_loader = DataLoader(data, batch_size=1797)

network = nn.Sequential(nn.Linear(64, 8192), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8192, 10)).cuda()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for inputs, target in train_loader:
    optimizer.zero_grad()
    F.cross_entropy(network(inputs.cuda()), target.cuda()).backward()
    optimizer.step()


def metrics(inputs, target):
    output = network(inputs.cuda())
    target = target.cuda()
    return {"loss": F.cross_entropy(output, target), "correct": (output.argmax(1) == target).sum()}


scores = legroom.evaluate(network, test_loader, metrics)
print(f"loss {scores['loss']:.2f}, accuracy {scores['correct'] / 1797:.0%}")
