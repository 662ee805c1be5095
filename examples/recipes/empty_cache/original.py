"""Allocate a list of tensors, delete it, and empty the cache. Also empty the cache in every training step.

legroom run --gpu 128MiB examples/recipes/empty_cache/original.py
"""

import gc

import torch
import torch.nn.functional as F
from torch import nn


def gpu_usage(text):
    """Print the memory that PyTorch reports. `GPUtil.showUtilization()` cannot see a virtual GPU."""
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    print(f"{text}: {allocated / 2**20:.0f} MiB allocated, {reserved / 2**20:.0f} MiB reserved")


gpu_usage("initial")
tensor_list = []
for _ in range(10):
    tensor_list.append(torch.randn(262144, 10).cuda())
first = tensor_list[0]
gpu_usage("after allocating")
del tensor_list
gpu_usage("after del")
gc.collect()
torch.cuda.empty_cache()
gpu_usage("after empty_cache")

model = nn.Sequential(nn.Linear(32, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    inputs, target = torch.randn(1024, 32).cuda(), torch.randint(10, (1024,)).cuda()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), target)
    loss.backward()
    optimizer.step()
    del inputs, target, loss
    gc.collect()
    torch.cuda.empty_cache()

print("device allocations:", torch.cuda.memory_stats()["num_device_alloc"])
