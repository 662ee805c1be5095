import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
backbone = nn.Sequential(nn.Linear(16, 32), nn.ReLU()).to(device).eval()
bank, labels = [], []
with torch.no_grad():
    for _ in range(30):
        bank.append(backbone(torch.randn(8, 16, device=device)))
        labels.append(torch.randint(0, 3, (8,), device=device))
probe = nn.Linear(32, 3).to(device)
optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
for epoch in range(2):
    for features, target in zip(bank, labels):
        loss = nn.functional.cross_entropy(probe(features), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
