"""Train a small convolutional network on scikit-learn's handwritten digits, upscaled to 64 x 64 pixels."""

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class DigitsCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 32, kernel_size=3, padding=1)
        self.norm2 = nn.BatchNorm2d(32)
        self.conv3 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.norm3 = nn.BatchNorm2d(64)
        self.head = nn.Linear(64 * 8 * 8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = F.max_pool2d(F.relu(self.norm3(self.conv3(x))), 2)
        return self.head(x.flatten(1))


def load_data(size: int, samples: int) -> tuple[torch.utils.data.Dataset, torch.utils.data.Dataset]:
    digits = load_digits()
    images = torch.tensor(digits.images[:samples], dtype=torch.float32).unsqueeze(1) / 16
    images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    data = TensorDataset(images, torch.tensor(digits.target[:samples]))
    return random_split(data, [0.8, 0.2], generator=torch.Generator().manual_seed(0))


def train_epoch(
    model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, device: torch.device
) -> float:
    model.train()
    total = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    return total / len(loader.dataset)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    correct = 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        correct += (model(images).argmax(dim=1) == labels).sum().item()
    return correct / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--samples", type=int, default=1797, help="fewer samples for a quick try")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = load_data(64, arguments.samples)
    train_loader = DataLoader(train_set, batch_size=arguments.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=arguments.batch_size)
    model = DigitsCNN().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        loss = train_epoch(model, train_loader, optimizer, device)
        print(
            f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy(model, test_loader, device):.1%}, "
            f"{time.perf_counter() - start:.1f} s on {device}",
            flush=True,
        )


if __name__ == "__main__":
    main()
