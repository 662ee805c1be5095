"""Train on two machines with the same command on both. `legroom launch` assigns the ranks and, after `--wait` seconds, reports
missing machines.

legroom launch --nodes 2 --rendezvous localhost:29411 --wait 3 --gpu 64MiB examples/recipes/several_machines/improved.py
"""

import torch
import torch.nn.functional as F
from torch import nn

import legroom

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(320, 64), torch.randint(10, (320,)))
model = nn.Linear(64, 10)
run = legroom.parallel(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy="ddp")
for x, y in run.loader(data, batch_size=64):
    loss = run.step(lambda x, y: F.cross_entropy(run.model(x), y), x, y)
print(f"rank {run.rank} of {run.world_size}: loss {run.gather(loss).mean():.2f}")
