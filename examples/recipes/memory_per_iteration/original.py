"""Show the GPU utilization after every step with GPUtil. GPUtil shows one percentage for the whole GPU, and shows nothing for a
virtual GPU.

legroom run --gpu 96MiB examples/recipes/memory_per_iteration/original.py
"""

import torch
import torch.nn.functional as F
from torch import nn

try:
    from GPUtil import showUtilization
except ImportError:  # not installed, or a Python without distutils (3.12 and newer)

    def showUtilization():  # noqa: N802
        """Print what GPUtil prints if nvidia-smi lists no GPU."""
        print("| ID | GPU | MEM |\n------------------")


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

hidden_states = []
for step in range(20):
    inputs, target = torch.randn(1024, 256).cuda(), torch.randint(10, (1024,)).cuda()
    hidden = model[:2](inputs)
    loss = F.cross_entropy(model[2](hidden), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hidden_states.append(hidden.mean(1, keepdim=True) + hidden)  # 4 MiB per step that nothing frees
    print(f"step {step}")
    showUtilization()
