"""Tune the same network with `legroom tune` and ASHA. The space is a file that any searcher can use, and a trial that was
interrupted continues from its checkpoint.

legroom tune --gpu cpu --engine local examples/recipes/asha_scheduler/improved.py:train examples/recipes/asha_scheduler/space.toml
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def train(config, trial):
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data[:640], dtype=torch.float32) / 16
    data = torch.utils.data.TensorDataset(images, torch.tensor(digits.target[:640]))
    net = nn.Sequential(nn.Linear(64, config["l1"]), nn.ReLU(), nn.Linear(config["l1"], 10)).to(trial.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    state = trial.load_checkpoint()
    if state is not None:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
    guard = trial.guard(net, optimizer)
    loader = torch.utils.data.DataLoader(data, config["batch_size"], shuffle=True)
    for _ in range(trial.step, 8):
        total = 0.0
        for x, y in loader:
            loss = guard.step(lambda x, y: F.cross_entropy(net(x), y), x.to(trial.device), y.to(trial.device))
            total += loss.item() * len(x)
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
        trial.report(loss=total / len(data), checkpoint=state)
