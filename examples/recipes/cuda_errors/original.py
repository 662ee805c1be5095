"""Handle every CUDA error like an out-of-memory error. Here, the labels are 1 to 10 instead of 0 to 9, so smaller batches do
not help.

legroom run --gpu 64MiB examples/recipes/cuda_errors/original.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target) + 1

model = nn.Linear(64, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(batch_size):
    for first in range(0, len(images), batch_size):
        loss = F.cross_entropy(
            model(images[first : first + batch_size].cuda()), labels[first : first + batch_size].cuda()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


batch_size = 256
while True:
    try:
        train(batch_size)
        break
    except Exception as error:
        print(f"batch size {batch_size}: {error}")
        if batch_size == 1:
            raise
        batch_size //= 4  # "a device-side assert is a kind of OOM"
        torch.cuda.empty_cache()
