"""Train with `nn.DataParallel`. Only GPU 0 stores the gradients, the optimizer state and the outputs of the whole batch, so
GPU 0 runs out of memory while most of the memory on GPU 1 is free.

legroom run --gpu 64MiB,64MiB examples/recipes/data_parallel/original.py
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 2000))
parallel_model = nn.DataParallel(model.cuda())  # encapsulate the model
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs, labels = torch.randn(1536, 256), torch.randint(2000, (1536,)).cuda()

try:
    for _ in range(3):
        predictions = parallel_model(inputs.cuda())  # forward pass on both GPUs, outputs on GPU 0
        loss = F.cross_entropy(predictions, labels)
        loss.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
finally:
    for gpu in range(torch.cuda.device_count()):
        print(f"GPU {gpu}: peak {torch.cuda.max_memory_allocated(gpu) / 2**20:.1f} MiB")
