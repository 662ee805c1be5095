import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
smoothed = None
for step in range(20):
    x = torch.randn(16, 12, device=device)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smoothed = loss if smoothed is None else 0.98 * smoothed + 0.02 * loss  # leak: holder=smoothed kind=graph lint=accumulate
    if step % 5 == 0:
        print(step, smoothed.item())
