"""Try the same grid with `legroom tune`. A combination that does not fit runs in micro-batches, with the same gradients as for
the whole batch.

legroom tune --gpu 48MiB --engine local examples/recipes/grid_search/improved.py:train examples/recipes/grid_search/space.toml
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def train(config, trial):
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 10)).to(trial.device)
    guard = trial.guard(model, torch.optim.SGD(model.parameters(), lr=config["lr"]))
    for x, y in zip(images.split(config["batch_size"]), labels.split(config["batch_size"]), strict=True):
        loss = guard.step(lambda x, y: F.cross_entropy(model(x), y), x.to(trial.device), y.to(trial.device))
    trial.report(loss=loss)
