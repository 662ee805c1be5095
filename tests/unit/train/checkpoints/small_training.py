"""A small training run with all kinds of state and randomness: dropout, batch normalization, shuffling, a
scheduler."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import legroom

EPOCHS = 3


class Training:
    """Trains for three epochs of seven batches. All instances start with equal values."""

    def __init__(
        self, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, **loader: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
        )
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.05, total_steps=21)
        data = TensorDataset(torch.randn(50, 6), torch.randint(0, 3, (50,)))
        self.loader: Any = DataLoader(data, batch_size=8, **{"shuffle": True, **loader})
        self.losses: list[float] = []
        self.step = 0

    def track(self, checkpoints: legroom.Checkpoints) -> "Training":
        checkpoints.track(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)
        self.loader = checkpoints.loader(self.loader)
        return self

    def run(self, after_step: Callable[["Training"], bool | None] = lambda training: None) -> "Training":
        """Train to the end, or until `after_step` returns True."""
        for _ in self.loader.epochs(EPOCHS):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                self.step += 1
                self.losses.append(loss.item())
                if after_step(self):
                    return self
        return self


def tensors(training: Training) -> list[torch.Tensor]:
    """Return weights, buffers and optimizer state."""
    moments = [value for state in training.optimizer.state.values() for value in state.values()]
    return [*training.model.state_dict().values(), *moments]


def saved_at(folder: Path, steps: Iterable[int], **options: Any) -> Training:
    """Run a training that saves after each of these steps and stops after the last one."""
    checkpoints = legroom.Checkpoints(folder, **options)
    steps = list(steps)

    def after_step(training: Training) -> bool:
        if training.step in steps:
            checkpoints.save(training.step, val_loss=training.losses[-1])
        return training.step == steps[-1]

    training = Training().track(checkpoints).run(after_step)
    checkpoints.wait()
    return training
