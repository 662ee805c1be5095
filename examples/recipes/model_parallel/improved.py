"""Let `legroom.parallel` split the same ResNet, without `.to("cuda:1")` in the model. Legroom predicts the memory of each
possible split and chooses the one with the lowest peak.

legroom run --gpu 60MiB,60MiB examples/recipes/model_parallel/improved.py
"""

import torch
import torch.nn.functional as F
from torch import nn

import legroom


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


torch.manual_seed(0)
blocks = [Block(3, 16, 1), Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2), Block(64, 128, 2)]
model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))

run = legroom.parallel(model, optimizer, strategy="split", batch=(images, labels))
for _ in range(2):
    loss = run.step(lambda x, y: F.cross_entropy(run.model(x), y), images, labels)
print(f"loss {loss.item():.4f}")
for gpu in range(2):
    print(f"GPU {gpu}: peak {torch.cuda.max_memory_allocated(gpu) / 2**20:.1f} MiB")
