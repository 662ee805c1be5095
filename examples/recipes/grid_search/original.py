"""Try all combinations of a grid with Ray's `tune.run`. The combinations with the large batch do not fit on the GPU, so half of
the grid has no result.

legroom tune --gpu 48MiB --engine local examples/recipes/grid_search/original.py
"""

import torch
import torch.nn.functional as F
from ray import tune
from sklearn.datasets import load_digits
from torch import nn


def train(config):
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for x, y in zip(images.split(config["batch_size"]), labels.split(config["batch_size"]), strict=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
    tune.report(loss=loss.item())


if __name__ == "__main__":
    analysis = tune.run(
        train,
        config={"lr": tune.grid_search([0.01, 0.1]), "batch_size": tune.grid_search([256, 1797])},
        metric="loss", mode="min", resources_per_trial={"gpu": 1}, name="grid",
    )  # fmt: skip
    print(len(analysis.trials), "of 4 combinations have a result")
