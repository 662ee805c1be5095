"""Trains a small convolutional network for a few steps, as in a tutorial."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.norm(self.convolution(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 256, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*[Block(256) for _ in range(6)])
        self.head = nn.Linear(256 * 16, 2048)
        self.out = nn.Linear(2048, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        x = F.adaptive_avg_pool2d(x, 4).flatten(1)
        return self.out(F.gelu(self.head(x)))


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    images, labels = torch.randn(12 * 64, 3, 64, 64), torch.randint(0, 10, (12 * 64,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, pin_memory=True)
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in loader)
    print(f"loss {loss.item():.3f}, right {right}, peak {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main()
