import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(12, 36), nn.GELU(), nn.Linear(36, 12)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ACCUM = 4
accum_loss = 0.0
for micro_step in range(1, 97):
    x = torch.randn(4, 12, device=device)
    loss = nn.functional.mse_loss(model(x), x) / ACCUM
    loss.backward()
    accum_loss += loss.detach()
    if micro_step % ACCUM == 0:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(micro_step // ACCUM, float(accum_loss))
        accum_loss = 0.0
