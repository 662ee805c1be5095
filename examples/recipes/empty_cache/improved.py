"""Free the list with `legroom.free`, which also names the variables that still retain memory. The training loop does not
empty the cache.

legroom run --gpu 128MiB examples/recipes/empty_cache/improved.py
"""

import torch
import torch.nn.functional as F
from torch import nn

import legroom

tensor_list = []
for _ in range(10):
    tensor_list.append(torch.randn(262144, 10).cuda())
first = tensor_list[0]
print(legroom.free("tensor_list"))
print(legroom.free("first"))

model = nn.Sequential(nn.Linear(32, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    inputs, target = torch.randn(1024, 32).cuda(), torch.randint(10, (1024,)).cuda()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), target)
    loss.backward()
    optimizer.step()

print("device allocations:", torch.cuda.memory_stats()["num_device_alloc"])
