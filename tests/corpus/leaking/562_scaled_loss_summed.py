import torch
from torch import nn

use_amp = torch.cuda.is_available()
device = "cuda" if use_amp else "cpu"
model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 2)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, enabled=use_amp)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=24)
batch_loss = 0

for i in range(24):
    x, y = torch.rand(4, 1, 8, 8, device=device), torch.randint(0, 2, (4,), device=device)
    with torch.autocast(device_type=device, enabled=use_amp):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    batch_loss += loss  # leak: holder=batch_loss kind=graph lint=accumulate
print("avg", batch_loss / 24)
