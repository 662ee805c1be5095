"""Search with HyperOpt through `legroom tune`. The momentum is a conditional parameter, so only trials with SGD have it.

legroom tune --gpu cpu --engine local examples/recipes/hyperopt_search/improved.py:train examples/recipes/hyperopt_search/space.toml
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def train(config, trial):
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    model = nn.Linear(64, 10).to(trial.device)
    if config["optimizer"] == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    guard = trial.guard(model, optimizer)
    for x, y in zip(images.split(128), labels.split(128), strict=True):
        loss = guard.step(lambda x, y: F.cross_entropy(model(x), y), x.to(trial.device), y.to(trial.device))
    trial.report(loss=loss)
