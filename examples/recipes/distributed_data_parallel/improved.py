"""Train the same model with `legroom.parallel`, which starts the process group, pins memory, and uses every sample once per
epoch, in a new order. The program also runs in one process.

legroom launch --gpu 64MiB --nproc 2 examples/recipes/distributed_data_parallel/improved.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import legroom

digits = load_digits()
train_data = torch.utils.data.TensorDataset(
    torch.tensor(digits.data).float() / 16, torch.tensor(digits.target), torch.arange(1797)
)
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = legroom.parallel(model, optimizer, strategy="ddp")
loader = run.loader(train_data, batch_size=128)  # 128 samples per step, across all ranks

orders = []
for _ in range(2):
    orders.append([])
    for x, y, numbers in loader:
        run.step(lambda x, y: F.cross_entropy(run.model(x), y), x, y)
        orders[-1] += numbers.tolist()
order = "the same order" if orders[0] == orders[1] else "another order"
print(f"rank {run.rank}: {len(orders[0])} of {len(train_data)} samples, {order} in the second epoch")
