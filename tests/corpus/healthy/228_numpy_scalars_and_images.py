import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
curves = {"loss": [], "grad": [], "lr": []}
model = nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.Linear(18, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
for step in range(26):
    loss = model(torch.randn(10, 9, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    curves["loss"].append(loss.detach().cpu().item())
    curves["grad"].append(float(norm))
    curves["lr"] = curves["lr"] + scheduler.get_last_lr()
