import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
accumulation_steps = 4
model = nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=16, batch_first=True).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
optimizer.zero_grad()
accum_loss = 0

for i in range(80):
    inputs = torch.randn(2, 5, 8, device=device)
    loss = (model(inputs) - inputs.flip(1)).pow(2).mean()
    loss = loss / accumulation_steps
    loss.backward()
    accum_loss = accum_loss + loss  # leak: holder=accum_loss kind=graph lint=accumulate
    if (i + 1) % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
        if (i + 1) % 20 == 0:
            print(f"step {(i + 1) // accumulation_steps}: {accum_loss.item() / (i + 1) * accumulation_steps:.4f}")
