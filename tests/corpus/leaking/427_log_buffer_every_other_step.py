import json

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
LOG_EVERY = 2
log_buffer = []


def flush(path=None):
    text = json.dumps([{**row, "loss": float(row["loss"])} for row in log_buffer])
    return len(text)


net = nn.Sequential(nn.Linear(11, 22), nn.GELU(), nn.Linear(22, 2)).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=2e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 50)
for step in range(50):
    x = torch.randn(6, 11, device=device)
    loss = nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % LOG_EVERY == 0:
        log_buffer.append({"step": step, "loss": loss, "lr": sched.get_last_lr()[0]})  # leak: holder=log_buffer kind=graph lint=accumulate
print(flush())
