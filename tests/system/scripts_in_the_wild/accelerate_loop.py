"""Hugging Face Accelerate: prepare, accumulate, mixed precision, clip, gather and unwrap. Accelerate chooses the
device."""

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed

set_seed(0)
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2, cpu="cuda" == "cpu")
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randint(0, 2, (32,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    accelerator.print(loss.item(), x.device.type == accelerator.device.type)
print(
    accelerator.gather_for_metrics(loss.detach()).shape,
    accelerator.unwrap_model(model)[0].weight.sum().item(),
)
accelerator.free_memory()
