"""Sample hyperparameters at random with Ray's `tune.run`. `sample_from` has no seed, so every search tries different layer
sizes. `uniform` rarely samples a small learning rate.

legroom tune --gpu cpu --engine local examples/recipes/random_search/original.py
"""

import numpy as np
import torch
import torch.nn.functional as F
from ray import tune
from sklearn.datasets import load_digits
from torch import nn


def train(config):
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, config["l1"]), nn.ReLU(), nn.Linear(config["l1"], 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for x, y in zip(images.split(128), labels.split(128), strict=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    tune.report(loss=loss.item())


if __name__ == "__main__":
    config = {
        "l1": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
        "lr": tune.uniform(1e-4, 1e-1),
    }
    analysis = tune.run(train, config=config, num_samples=8, metric="loss", mode="min", name="random")
    print("layer sizes:", *(trial.config["l1"] for trial in analysis.trials))
