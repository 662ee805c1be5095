import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"


class Deep(nn.Module):
    def __init__(self, depth=5, width=12):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        stages = []
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
            stages.append(x)
        return self.out(torch.stack(stages).sum(0))


model = Deep().to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(22):
    loss = model(torch.randn(6, 12, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
