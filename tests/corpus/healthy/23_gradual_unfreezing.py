import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(12)).to(device)
for block in blocks[:-1]:
    block.requires_grad_(False)
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-3)
for step in range(40):
    if step < 11:
        blocks[10 - step].requires_grad_(True)
    x = torch.randn(5, 8, device=device)
    for block in blocks:
        x = torch.tanh(block(x))
    loss = x.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
