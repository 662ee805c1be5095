"""Train with one process per GPU (DDP) through `legroom.parallel`. There is no coordinator: each GPU computes the outputs and
the loss of its own samples, so both GPUs use the same amount of memory.

legroom launch --gpu 64MiB --nproc 2 examples/recipes/data_parallel/improved.py
"""

import torch
import torch.nn.functional as F
from torch import nn

import legroom

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 2000))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs, labels = torch.randn(1536, 256), torch.randint(2000, (1536,))
data = torch.utils.data.TensorDataset(inputs, labels)

run = legroom.parallel(model, optimizer, strategy="ddp")
for _ in range(3):
    for x, y in run.loader(data, batch_size=1536):
        loss = run.step(lambda x, y: F.cross_entropy(run.model(x), y), x, y)

print(f"GPU {run.rank}: peak {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
