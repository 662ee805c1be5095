import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def batches(n):
    seen = []
    for _ in range(n):
        x = torch.randn(64, 16, device=device)
        seen.append(x)  # leak: holder=seen kind=tensor
        yield x


model = nn.Linear(16, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in batches(24):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
