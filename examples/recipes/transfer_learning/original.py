"""Add a linear layer after a pretrained network and freeze all other parameters. The running statistics of the frozen batch
normalization still adapt to the new data.

legroom run --gpu 32MiB examples/recipes/transfer_learning/original.py
"""

import torch
import torch.nn.functional as F
from torch import nn


def pretrained_vgg():
    """Stand in for `models.vgg19(pretrained=True)`, which downloads its weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 1000),
    )


class MyNewNet(nn.Module):
    def __init__(self):
        super(MyNewNet, self).__init__()  # noqa: UP008
        self.vgg19 = pretrained_vgg()
        self.linear_layers = nn.Linear(1000, 1)

    def forward(self, x):
        x = self.vgg19(x)
        return self.linear_layers(x)


my_model = MyNewNet().cuda()
for param in my_model.parameters():
    param.requires_grad = False
for param in my_model.linear_layers.parameters():
    param.requires_grad = True

optimizer = torch.optim.Adam(my_model.parameters(), lr=1e-3)
features = my_model.vgg19[1].running_mean.clone()
for _ in range(5):
    images, target = torch.randn(64, 3, 32, 32).cuda() + 1, torch.rand(64, 1).cuda()
    optimizer.zero_grad()
    F.mse_loss(my_model(images), target).backward()
    optimizer.step()
print("frozen statistics unchanged:", torch.equal(features, my_model.vgg19[1].running_mean))
print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
