"""Search with Ray's `HyperOptSearch`. The searcher also samples a momentum for trials with Adam, which has no momentum
parameter.

legroom tune --gpu cpu --engine local examples/recipes/hyperopt_search/original.py
"""

import torch
import torch.nn.functional as F
from ray import tune
from ray.tune.suggest.hyperopt import HyperOptSearch
from sklearn.datasets import load_digits
from torch import nn


def train(config):
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    model = nn.Linear(64, 10)
    if config["optimizer"] == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for x, y in zip(images.split(128), labels.split(128), strict=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    tune.report(loss=loss.item())


if __name__ == "__main__":
    config = {
        "optimizer": tune.choice(["sgd", "adam"]),
        "lr": tune.loguniform(1e-4, 1e-1),
        "momentum": tune.uniform(0.5, 0.99),
    }
    analysis = tune.run(
        train,
        config=config,
        num_samples=8,
        search_alg=HyperOptSearch(metric="loss", mode="min"),
        name="hyperopt",
    )
    unused = sum(trial.config["optimizer"] == "adam" for trial in analysis.trials)
    print(f"{unused} of {len(analysis.trials)} trials have a momentum that they do not use")
