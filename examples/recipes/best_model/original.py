"""Keep the state_dict of the best epoch in a variable. A state_dict references the weights of the model, so later steps
change it.

legroom run --gpu 64MiB examples/recipes/best_model/original.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32).cuda() / 16
labels = torch.tensor(digits.target).cuda()
model = nn.Linear(64, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def accuracy():
    with torch.no_grad():
        return (model(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()


best = 0.0
for epoch in range(8):
    optimizer.param_groups[0]["lr"] = 0.5 if epoch < 6 else 20.0  # a schedule that ends too high
    for first in range(0, 1437, 256):
        samples = slice(first, min(first + 256, 1437))
        optimizer.zero_grad()
        F.cross_entropy(model(images[samples]), labels[samples]).backward()
        optimizer.step()
    if accuracy() > best:
        best = accuracy()
        best_state = model.state_dict()

model.load_state_dict(best_state)
print(f"best epoch {best:.3f}, loaded {accuracy():.3f}")
