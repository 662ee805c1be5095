"""Classify errors with `legroom.explain`, which shows whether an error is about memory, and what to check.

legroom run --gpu 64MiB examples/recipes/cuda_errors/improved.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import legroom

MESSAGES = [
    "RuntimeError: CUDA error: device-side assert triggered",
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
]
for message in MESSAGES:
    found = legroom.explain(message)
    print(f"{found.code}, {found.kind}: {found.sentence}")

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target) + 1

model = nn.Linear(64, 10)
try:
    F.cross_entropy(model(images), labels)  # on the CPU: after a device-side assert, every CUDA call fails
except Exception as error:
    found = legroom.explain(error)
    print(f"{found.code}, {found.kind}: {found.causes[0].check}")

labels -= labels.min()
model = model.cuda()
loss = F.cross_entropy(model(images.cuda()), labels.cuda())
print(f"labels {labels.min()} to {labels.max()}, loss {loss.item():.3f}")
