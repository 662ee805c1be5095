import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
encoder = nn.Linear(16, 8).to(device)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)
bank = torch.empty(0, 8, device=device)
for step in range(40):
    features = encoder(torch.randn(12, 16, device=device))
    loss = features.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    joined = torch.cat([bank, features.detach()])  # also:
    bank = joined  # leak: holder=bank|joined kind=larger
