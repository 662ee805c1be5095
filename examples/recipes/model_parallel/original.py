"""Put the first layers of a ResNet on GPU 0 and the other layers on GPU 1. The first layers have the largest activations, so
GPU 0 runs out of memory while GPU 1 has free memory.

legroom run --gpu 60MiB,60MiB examples/recipes/model_parallel/original.py
"""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class ModelParallelResNet(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.seq1 = nn.Sequential(Block(3, 16, 1), Block(16, 16, 1), Block(16, 32, 2)).to("cuda:0")
        self.seq2 = nn.Sequential(Block(32, 64, 2), Block(64, 128, 2), nn.AdaptiveAvgPool2d(1)).to("cuda:1")
        self.fc = nn.Linear(128, num_classes).to("cuda:1")

    def forward(self, x):
        x = self.seq2(self.seq1(x).to("cuda:1"))
        return self.fc(x.view(x.size(0), -1))


torch.manual_seed(0)
model = ModelParallelResNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
try:
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to("cuda:0")), labels.to("cuda:1"))
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
finally:
    for gpu in range(2):
        print(f"GPU {gpu}: peak {torch.cuda.max_memory_allocated(gpu) / 2**20:.1f} MiB")
