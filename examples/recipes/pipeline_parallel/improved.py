"""Train the same ResNet as a pipeline of two processes. The 1F1B schedule starts the backward pass of a micro-batch early, so
each GPU keeps the activations of at most two micro-batches.

legroom launch --gpu 40MiB --nproc 2 examples/recipes/pipeline_parallel/improved.py
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

run = legroom.parallel(model, optimizer, strategy="pipeline", batch=(images, labels), micro_batches=8)
for _ in range(2):
    loss = run.step(lambda x, y: F.cross_entropy(run.model(x), y), images, labels)
print(f"GPU {run.rank}: peak {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB, loss {loss.item():.4f}")
