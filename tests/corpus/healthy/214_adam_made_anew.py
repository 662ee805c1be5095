import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).to(device)
for stage in range(4):
    # one more layer is trained in each stage, with a fresh optimizer and schedule
    trained = layers[: stage + 1]
    optimizer = torch.optim.Adam(trained.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    for step in range(8):
        x = torch.randn(6, 8, device=device)
        hidden = x
        for layer in trained:
            hidden = torch.tanh(layer(hidden))
        loss = (hidden - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
