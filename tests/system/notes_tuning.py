"""The notes' tuning script. Only the imports and `tune.report` differ, because Ray itself has changed: searchers moved
to `ray.tune.search`, and `tune.report` takes a dict."""

import os
from functools import partial

import numpy as np
import torch
from ray import tune
from ray.tune import CLIReporter
from ray.tune.schedulers import ASHAScheduler
from torch import nn


def load_data(data_dir="./data"):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())


def train_cifar(config, checkpoint_dir=None, data_dir=None):
    assert data_dir.endswith("data")
    net = nn.Sequential(
        nn.Linear(8, config["l1"]),
        nn.ReLU(),
        nn.Linear(config["l1"], config["l2"]),
        nn.Linear(config["l2"], 2),
    )
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    net.to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    if checkpoint_dir:
        model_state, optimizer_state = torch.load(os.path.join(checkpoint_dir, "checkpoint"))
        net.load_state_dict(model_state)
        optimizer.load_state_dict(optimizer_state)
    loader = torch.utils.data.DataLoader(
        load_data(data_dir), batch_size=int(config["batch_size"]), shuffle=True
    )
    for _ in range(10):
        losses, correct = [], 0
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = net(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            correct += (outputs.argmax(1) == labels).sum()
        tune.report({"loss": np.mean(losses), "accuracy": correct / 64})


def main(num_samples=10, max_num_epochs=10, gpus_per_trial=2):
    data_dir = os.path.abspath("./data")
    load_data(data_dir)

    config = {
        "l1": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
        "l2": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
        "lr": tune.loguniform(1e-4, 1e-1),
        "batch_size": tune.choice([2, 4, 8, 16]),
    }
    scheduler = ASHAScheduler(
        metric="loss", mode="min", max_t=max_num_epochs, grace_period=1, reduction_factor=2
    )
    reporter = CLIReporter(
        # parameter_columns=["l1", "l2", "lr", "batch_size"],
        metric_columns=["loss", "accuracy", "training_iteration"]
    )

    result = tune.run(
        partial(train_cifar, data_dir=data_dir),
        resources_per_trial={"cpu": 2, "gpu": gpus_per_trial},
        config=config,
        num_samples=num_samples,
        scheduler=scheduler,
        progress_reporter=reporter,
    )
    best_trial = result.get_best_trial("loss", "min", "last")
    print("Best trial config:", best_trial.config)
    print("Best trial final validation loss:", best_trial.last_result["loss"])
    print(len(result.results_df), "rows")


if __name__ == "__main__":
    main(num_samples=4, max_num_epochs=3)
