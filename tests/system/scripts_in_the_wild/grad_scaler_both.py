"""The old and the new GradScaler API, nested fp16 and bf16 autocast, disabled regions, and an inf that skips a
step."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"
for spelling in ("old", "new"):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = (
        torch.cuda.amp.GradScaler(init_scale=1024.0)
        if spelling == "old"
        else torch.amp.GradScaler("cuda", init_scale=1024.0)
    )
    for step in range(4):
        x, y = torch.randn(4, 1, 8, 8, device=device), torch.randint(0, 3, (4,), device=device)
        optimizer.zero_grad(set_to_none=True)
        with (
            torch.cuda.amp.autocast()
            if spelling == "old"
            else torch.autocast(device_type="cuda", dtype=torch.float16)
        ):
            out = model(x)
            with torch.autocast(device_type="cuda", enabled=False):
                loss = F.cross_entropy(out.float(), y)
        if step == 2:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print(
            spelling,
            step,
            out.dtype,
            loss.item(),
            norm.item(),
            scaler.get_scale(),
            scaler.state_dict()["_growth_tracker"],
        )


@torch.autocast("cuda", dtype=torch.bfloat16)
def forward(model, x):
    return model(x)


model = nn.Linear(8, 8).to(device)
out = forward(model, torch.randn(2, 8, device=device))
print(out.dtype, out.float().sum().item(), torch.is_autocast_enabled("cuda"))
with torch.autocast("cuda", dtype=torch.bfloat16):
    a = torch.mm(torch.ones(2, 2, device=device), torch.ones(2, 2, device=device))
    print(a.dtype, (a @ a).dtype, a.float().sum().item())
