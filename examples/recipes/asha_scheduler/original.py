"""Tune a network with ASHA and `tune.run` of Ray 1. Current versions of Ray reject this script, but `legroom tune` runs
it unchanged.

legroom tune --gpu cpu --engine local examples/recipes/asha_scheduler/original.py
"""

import os
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from ray import tune
from ray.tune import CLIReporter
from ray.tune.schedulers import ASHAScheduler
from sklearn.datasets import load_digits
from torch import nn


def train_digits(config, data_dir=None):
    digits = load_digits()
    images, labels = torch.tensor(digits.data[:640]).float() / 16, torch.tensor(digits.target[:640])
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(nn.Linear(64, config["l1"]), nn.ReLU(), nn.Linear(config["l1"], 10)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    data = torch.utils.data.TensorDataset(images, labels)
    for epoch in range(8):
        losses = []
        for inputs, labels in torch.utils.data.DataLoader(data, config["batch_size"], shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with tune.checkpoint_dir(epoch) as folder:
            torch.save((net.state_dict(), optimizer.state_dict()), os.path.join(folder, "checkpoint"))
        tune.report(loss=np.mean(losses))


def main(num_samples=6, max_num_epochs=8, gpus_per_trial=2):
    config = {
        "l1": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
        "lr": tune.loguniform(1e-4, 1e-1),
        "batch_size": tune.choice([16, 32, 64]),
    }
    scheduler = ASHAScheduler(
        metric="loss", mode="min", max_t=max_num_epochs, grace_period=1, reduction_factor=2
    )
    result = tune.run(
        partial(train_digits, data_dir=os.path.abspath("./data")),
        resources_per_trial={"cpu": 2, "gpu": gpus_per_trial},
        config=config, num_samples=num_samples, scheduler=scheduler,
        progress_reporter=CLIReporter(metric_columns=["loss", "training_iteration"]),
    )  # fmt: skip
    best = result.get_best_trial("loss", "min", "last")
    print("The best trial ran for", best.last_result["training_iteration"], "epochs")


if __name__ == "__main__":
    main()
