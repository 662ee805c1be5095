import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
skipped = []

for i in range(48):
    x = torch.randn(8, 10, device=device)
    if i % 2:
        x = x * 1e4  # a bad sensor reading
    loss = model(x).pow(2).mean()
    if loss.item() > 100:
        print(f"skipping batch {i}, loss too high")
        skipped.append((i, loss))  # leak: holder=skipped kind=graph lint=accumulate
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("skipped", len(skipped))
