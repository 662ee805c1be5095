"""Sum the losses of all steps as tensors. The sums keep the autograd graph of every step alive.

legroom run --gpu 96MiB examples/recipes/accumulated_losses/original.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32).cuda() / 16
labels = torch.tensor(digits.target).cuda()
valid_images, valid_labels = images[1437:], labels[1437:]

model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

total_loss, total_valid_loss = 0, 0
for step in range(20):
    samples = slice(64 * step, 64 * step + 64)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[samples]), labels[samples])
    loss.backward()
    optimizer.step()
    total_loss += loss  # the backward pass has freed the activations of this graph
    valid_loss = F.cross_entropy(model(valid_images), valid_labels)
    total_valid_loss += valid_loss  # no backward pass frees this graph
    if step % 5 == 4:
        print(f"step {step + 1}: {torch.cuda.memory_allocated() / 2**20:.1f} MiB")

print(f"mean loss {total_loss.item() / 20:.2f}, on validation data {total_valid_loss.item() / 20:.2f}")
