"""Train and validate in float32, and with `torch.cuda.amp`. The backward pass and the optimizer step run inside autocast, which
the PyTorch documentation does not recommend.

legroom run --gpu 32MiB examples/recipes/mixed_precision/original.py
"""

import warnings

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast

warnings.simplefilter("ignore", FutureWarning)  # torch.cuda.amp is deprecated


def train(mixed_precision):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 256), nn.Tanh(), nn.Sigmoid(), nn.Tanh(), nn.Linear(256, 2)).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = GradScaler()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        train_x, train_y = torch.randn(4096, 1).cuda(), torch.randint(2, (4096,)).cuda()
        optimizer.zero_grad()
        if mixed_precision:
            with autocast():
                outputs = model(train_x)
                loss = criterion(outputs, train_y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        else:
            outputs = model(train_x)
            loss = criterion(outputs, train_y)
            loss.backward()
            optimizer.step()
    with torch.no_grad(), autocast(enabled=mixed_precision):
        outputs = model(train_x)
        loss = criterion(outputs, train_y)
    print(
        f"{outputs.dtype}: loss {loss.item():.3f}, peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
    )


train(mixed_precision=False)
train(mixed_precision=True)
