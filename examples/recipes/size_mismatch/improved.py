"""Print the shapes of all layers with `legroom.summary`, which names the layer that does not match and suggests a fix.

legroom run --gpu 32MiB examples/recipes/size_mismatch/improved.py
"""

import torch
import torch.nn.functional as F
from torch import nn

import legroom


class Net(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.fc = nn.Linear(features, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


torch.manual_seed(0)
print(legroom.summary(Net(32 * 7 * 7), input_size=(32, 1, 28, 28)))

model = Net(800)  # as suggested
print(legroom.summary(model, input_size=(32, 1, 28, 28)))
output = model.cuda()(torch.randn(32, 1, 28, 28).cuda())
print(output.shape)
