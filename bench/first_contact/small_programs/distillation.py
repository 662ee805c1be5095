import torch
import torch.nn.functional as F
from torch import nn


def blocks(width, depth):
    layers = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))


torch.manual_seed(0)
big = blocks(48, 6).cuda().eval()
small = blocks(12, 3).cuda()
optimizer = torch.optim.SGD(small.parameters(), lr=0.05, momentum=0.9)
for step in range(3):
    images = torch.randn(48, 3, 32, 32, device="cuda")
    target = big(images).softmax(1)
    loss = F.kl_div(small(images).log_softmax(1), target, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.5f}")
