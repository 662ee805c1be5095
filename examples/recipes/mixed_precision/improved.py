"""Train and validate with `legroom.precision`, which selects bfloat16 or float16 for the GPU and scales the loss only if
needed.

legroom run --gpu 32MiB examples/recipes/mixed_precision/improved.py
"""

import torch
from torch import nn

import legroom

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 256), nn.Tanh(), nn.Sigmoid(), nn.Tanh(), nn.Linear(256, 2)).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
precision = legroom.precision("auto")
print(precision.name, precision.reason)
for _ in range(2):
    train_x, train_y = torch.randn(4096, 1).cuda(), torch.randint(2, (4096,)).cuda()
    optimizer.zero_grad()
    with precision.autocast():  # the forward pass and the loss only
        loss = criterion(model(train_x), train_y)
    precision.backward(loss)
    precision.step(optimizer)
    precision.update()
with torch.inference_mode(), precision.autocast():
    outputs = model(train_x)
    loss = criterion(outputs, train_y)
print(f"{outputs.dtype}: loss {loss.item():.3f}, peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
