"""Trains a transformer of library modules with activation checkpointing, mixed precision and keyword arguments."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = (nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(4))
        self.layers = nn.ModuleList(layers)
        self.out = nn.Linear(512, 512)

    def forward(self, *, tokens: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            tokens = checkpoint(layer, tokens, use_reentrant=False)
        return self.out(tokens)


model = Tower().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
for _ in range(6):
    tokens = torch.randn(32, 256, 512, device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = model(tokens=tokens).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f}")
