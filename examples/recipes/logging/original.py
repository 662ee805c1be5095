"""Log the loss and the allocated memory after each step with tensorboardX and wandb. The log does not show the peak within the
step, which is much higher.

legroom run --gpu 64MiB examples/recipes/logging/original.py
"""

import torch
import torch.nn.functional as F
import wandb
from sklearn.datasets import load_digits
from tensorboardX import SummaryWriter
from torch import nn

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data).float().cuda() / 16, torch.tensor(digits.target).cuda()
model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

writer = SummaryWriter("runs/original")
wandb.init(project="digits", mode="disabled")  # "online" needs an account
for step, (x, y) in enumerate(zip(images.split(600), labels.split(600), strict=True)):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    memory = torch.cuda.memory_allocated() / 2**20
    writer.add_scalar("loss", loss.item(), step)
    writer.add_scalar("memory", memory, step)
    wandb.log({"loss": loss.item(), "memory": memory})
    print(f"step {step}: {memory:.1f} MiB")
writer.close()
wandb.finish()
