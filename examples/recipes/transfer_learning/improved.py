"""Replace the last layer of a pretrained network and freeze the rest with `legroom.transfer`, which predicts how much
memory this saves and keeps frozen batch normalization in evaluation mode.

legroom run --gpu 32MiB examples/recipes/transfer_learning/improved.py
"""

import torch
import torch.nn.functional as F
from torch import nn

from legroom import transfer


def pretrained_vgg():
    """Stand in for `models.vgg19(weights="DEFAULT")`, which downloads its weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 1000),
    )


model = pretrained_vgg().cuda()
head = transfer.replace_head(model, num_classes=1)
print(transfer.freeze(model, trainable=head, batch=torch.randn(64, 3, 32, 32)))

optimizer = torch.optim.Adam(transfer.param_groups(model, lr=1e-3))
features = model[1].running_mean.clone()
model.train()
for _ in range(5):
    images, target = torch.randn(64, 3, 32, 32).cuda() + 1, torch.rand(64, 1).cuda()
    optimizer.zero_grad()
    F.mse_loss(model(images), target).backward()
    optimizer.step()
print("frozen statistics unchanged:", torch.equal(features, model[1].running_mean))
print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
