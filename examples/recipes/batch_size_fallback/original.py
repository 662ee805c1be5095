"""If a step runs out of memory, repeat it with batches of one sample. This fallback takes 64 optimizer steps instead of one,
so the trained weights differ.

legroom run --gpu 96MiB examples/recipes/batch_size_fallback/original.py
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
images, labels = torch.randn(64, 3, 64, 64), torch.randint(10, (64,))
model(images[:1])
model = model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
forward_passes, updates = 0, 0

expected = copy.deepcopy(model).cpu()  # one update with the whole batch, in host memory
F.cross_entropy(expected(images), labels).backward()
torch.optim.SGD(expected.parameters(), lr=0.01).step()


def run_model(first, last):
    global forward_passes, updates
    forward_passes += 1
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[first:last].cuda()), labels[first:last].cuda())
    loss.backward()
    optimizer.step()
    updates += 1


batch_size = 64
oom = False
try:
    run_model(0, batch_size)
except RuntimeError:  # also catches errors that are not out-of-memory errors
    oom = True

if oom:
    for i in range(batch_size):
        run_model(i, i + 1)
print(f"{forward_passes} forward passes, {updates} updates of the weights")
difference = (model[0].weight.cpu() - expected[0].weight).abs().max().item()
print(f"the weights differ by at most {difference:.1e}")
