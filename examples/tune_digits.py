"""Tune a small convolutional network on scikit-learn's handwritten digits.

Run it with `legroom tune examples/tune_digits.py:train examples/space.toml`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import legroom


class DigitsNet(nn.Module):
    """Two convolutions, then linear layers of `l1` and `l2` units."""

    def __init__(self, l1: int, l2: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=3)
        self.fc1 = nn.Linear(16 * 3 * 3, l1)
        self.fc2 = nn.Linear(l1, l2)
        self.fc3 = nn.Linear(l2, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


def load_data() -> tuple[torch.utils.data.Dataset, torch.utils.data.Dataset]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    return random_split(data, [1437, 360], generator=torch.Generator().manual_seed(0))


def train(config: dict[str, Any], trial: Any) -> None:
    torch.manual_seed(0)
    train_set, test_set = load_data()
    loader = DataLoader(train_set, batch_size=config["batch_size"], shuffle=True)
    model = DigitsNet(config["l1"], config["l2"]).to(trial.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    guard = trial.guard(model, optimizer)  # uses a micro-batch size that fits
    for _epoch in range(config["epochs"]):
        for images, labels in loader:
            guard.step(
                lambda x, y: F.cross_entropy(model(x), y), images.to(trial.device), labels.to(trial.device)
            )
        loss, accuracy = validate(model, test_set, trial.device)
        trial.report(loss=loss, accuracy=accuracy, checkpoint=model.state_dict())


@torch.no_grad()
def validate(model: nn.Module, test_set: Any, device: str) -> tuple[float, float]:
    loss, correct = 0.0, 0
    for images, labels in DataLoader(test_set, batch_size=64):
        images, labels = images.to(device), labels.to(device)
        scores = model(images)
        loss += F.cross_entropy(scores, labels, reduction="sum").item()
        correct += (scores.argmax(dim=1) == labels).sum().item()
    return loss / len(test_set), correct / len(test_set)


if __name__ == "__main__":
    study = legroom.tune(
        train, "examples/space.toml", metric="loss", scheduler="asha", trials=10, storage="digits-study"
    )
    print(study)
