import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
data = TensorDataset(torch.arange(24), torch.randn(24, 6), torch.randint(0, 2, (24,)))
model = nn.Linear(6, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
smoothed = [0.0] * len(data)
for epoch in range(8):
    for index, x, y in DataLoader(data, batch_size=8, shuffle=True):
        each = nn.functional.cross_entropy(model(x.to(device)), y.to(device), reduction="none")
        optimizer.zero_grad()
        each.mean().backward()
        optimizer.step()
        for i, value in zip(index.tolist(), each):
            smoothed[i] = 0.7 * smoothed[i] + 0.3 * value  # leak: holder=smoothed kind=graph lint=accumulate
print(sorted(float(value) for value in smoothed)[-3:])
