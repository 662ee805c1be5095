"""Search with Ray's `BayesOptSearch`. This searcher supports only ranges of floats on a linear scale, so most of the learning
rates that it tries are large, and the training function must round the layer size.

legroom tune --gpu cpu --engine local examples/recipes/bayesian_search/original.py
"""

import torch
import torch.nn.functional as F
from ray import tune
from ray.tune.suggest.bayesopt import BayesOptSearch
from sklearn.datasets import load_digits
from torch import nn


def train(config):
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    hidden = int(config["l1"])
    model = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for x, y in zip(images.split(128), labels.split(128), strict=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    tune.report(loss=loss.item())


if __name__ == "__main__":
    config = {"l1": tune.uniform(4, 256), "lr": tune.uniform(1e-4, 1e-1)}
    analysis = tune.run(
        train,
        config=config,
        num_samples=12,
        search_alg=BayesOptSearch(metric="loss", mode="min"),
        name="bayes",
    )
    small = sum(trial.config["lr"] < 1e-2 for trial in analysis.trials)
    print(f"{small} of {len(analysis.trials)} trials have a learning rate below 0.01")
