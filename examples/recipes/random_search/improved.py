"""Sample the same hyperparameters with `legroom tune`. The search space is a file, the search has a seed, and learning rates are
sampled on a logarithmic scale.

legroom tune --gpu cpu --engine local examples/recipes/random_search/improved.py:train examples/recipes/random_search/space.toml
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def train(config, trial):
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, config["l1"]), nn.ReLU(), nn.Linear(config["l1"], 10)).to(
        trial.device
    )
    guard = trial.guard(model, torch.optim.Adam(model.parameters(), lr=config["lr"]))
    for x, y in zip(images.split(128), labels.split(128), strict=True):
        loss = guard.step(lambda x, y: F.cross_entropy(model(x), y), x.to(trial.device), y.to(trial.device))
    trial.report(loss=loss)
