import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def train_batch(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    if not torch.isfinite(loss):
        raise FloatingPointError("loss is not finite")
    loss.backward()
    optimizer.step()
    return loss.item()


model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
skipped, last_reason = 0, ""
for step in range(48):
    x, y = torch.randn(16, 4, device=device), torch.randn(16, 1, device=device)
    if step % 3 == 0:
        y[0] = float("inf")
    try:
        train_batch(model, optimizer, x, y)
    except FloatingPointError as exc:
        skipped += 1
        last_reason = f"step {step}: {exc}"
print(skipped, "skipped;", last_reason)
