"""Run the same step with `legroom.Guard`, which splits the batch into micro-batches that fit and updates the weights once.
`legroom.find_batch` finds the largest batch size in advance.

legroom run --gpu 96MiB examples/recipes/batch_size_fallback/improved.py
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import legroom

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
images, labels = torch.randn(64, 3, 64, 64), torch.randint(10, (64,))
model(images[:1])
model = model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

expected = copy.deepcopy(model).cpu()  # one update with the whole batch, in host memory
F.cross_entropy(expected(images), labels).backward()
torch.optim.SGD(expected.parameters(), lr=0.01).step()


def loss_fn(inputs, target):
    return F.cross_entropy(model(inputs), target)


def run_model(inputs, target):
    optimizer.zero_grad()
    loss_fn(inputs.cuda(), target.cuda()).backward()
    optimizer.step()


found = legroom.find_batch(run_model, (images, labels))
print(f"largest batch size: {found.batch_size}, {found.oom_count} out-of-memory errors in the search")
guard = legroom.Guard(model, optimizer)
guard.step(loss_fn, images.cuda(), labels.cuda())
print(f"micro-batches: {guard.last_step.split}, 1 update of the weights")
difference = (model[0].weight.cpu() - expected[0].weight).abs().max().item()
print(f"the weights differ by at most {difference:.1e}")
