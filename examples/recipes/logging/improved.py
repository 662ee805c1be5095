"""Log only the loss. `legroom run --log` adds the allocated and reserved memory of each step and their peaks, and attaches
the report.

legroom run --gpu 64MiB --log tensorboard:runs/improved examples/recipes/logging/improved.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data).float().cuda() / 16, torch.tensor(digits.target).cuda()
model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

with SummaryWriter("runs/improved") as writer:
    for step, (x, y) in enumerate(zip(images.split(600), labels.split(600), strict=True)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        writer.add_scalar("loss", loss.item(), step)
