import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def batch_size_at(step, start=4, end=32, every=3):
    return min(end, start + 4 * (step // every))


model = nn.Sequential(nn.Linear(12, 36), nn.GELU(), nn.Linear(36, 12)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
seen = 0
for step in range(50):
    x = torch.randn(batch_size_at(step), 12, device=device)
    loss = (model(x) - x.flip(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen += len(x)
print(seen, "samples")
