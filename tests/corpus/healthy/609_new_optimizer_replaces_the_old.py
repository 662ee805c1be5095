import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(32, 8).to(device)
for phase in range(12):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 / (phase + 1))
    for _ in range(4):
        loss = model(torch.randn(16, 32, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
