import torch
from torch import nn

use_amp = torch.cuda.is_available()
device = "cuda" if use_amp else "cpu"
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 8)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, enabled=use_amp)
ema_loss = None
for step in range(32):
    x = torch.randn(12, 8, device=device)
    with torch.autocast(device_type=device, enabled=use_amp):
        loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    ema_loss = loss.detach() if ema_loss is None else torch.lerp(ema_loss, loss.detach(), 0.1)
print(float(ema_loss))
