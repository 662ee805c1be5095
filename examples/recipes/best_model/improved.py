"""Save every epoch with `legroom.Checkpoints(best=...)`, which keeps the best and the last checkpoint on disk.

legroom run --gpu 64MiB examples/recipes/best_model/improved.py
"""

import tempfile

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import legroom

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32).cuda() / 16
labels = torch.tensor(digits.target).cuda()
model = nn.Linear(64, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
checkpoints = legroom.Checkpoints(tempfile.mkdtemp(), keep=1, best="accuracy", higher_is_better=True)
checkpoints.track(model=model, optimizer=optimizer)


def accuracy():
    with torch.no_grad():
        return (model(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()


for epoch in range(8):
    optimizer.param_groups[0]["lr"] = 0.5 if epoch < 6 else 20.0  # a schedule that ends too high
    for first in range(0, 1437, 256):
        samples = slice(first, min(first + 256, 1437))
        optimizer.zero_grad()
        F.cross_entropy(model(images[samples]), labels[samples]).backward()
        optimizer.step()
    checkpoints.save(epoch, accuracy=accuracy())

checkpoints.load_weights(model)
print(f"best epoch {checkpoints.best.metrics['accuracy']:.3f}, loaded {accuracy():.3f}")
print("kept:", [each.step for each in checkpoints.saved])
