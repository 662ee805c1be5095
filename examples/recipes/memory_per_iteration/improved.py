"""Watch the same loop with `legroom.watch`, which names the variable and the line that retain memory. The program stops when
a leak is found.

legroom run --gpu 96MiB examples/recipes/memory_per_iteration/improved.py
"""

import torch
import torch.nn.functional as F
from torch import nn

import legroom

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

hidden_states = []
leaks = []
for step in legroom.watch(range(20), on_leak=leaks.append, quiet=True):
    inputs, target = torch.randn(1024, 256).cuda(), torch.randint(10, (1024,)).cuda()
    hidden = model[:2](inputs)
    loss = F.cross_entropy(model[2](hidden), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hidden_states.append(hidden.mean(1, keepdim=True) + hidden)  # 4 MiB per step that nothing frees
    print(f"step {step}: {torch.cuda.memory_allocated() / 2**20:.1f} MiB")
    if leaks:
        (leak,) = leaks
        print(f"line {leak.line}: `{leak.name}` grows by {leak.bytes_per_step / 2**20:.0f} MiB per step")
        print(leak.advice)
        break
