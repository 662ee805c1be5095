"""Train a CNN whose linear layer has the wrong number of inputs, and read the right number from the error message.

legroom run --gpu 32MiB examples/recipes/size_mismatch/original.py
"""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()  # noqa: UP008
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.fc = nn.Linear(32 * 7 * 7, 10)  # as if the convolutions kept the size of 28 x 28

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.view(x.size(0), -1))


torch.manual_seed(0)
model = Net().cuda()
output = model(torch.randn(32, 1, 28, 28).cuda())
print(output.shape)
