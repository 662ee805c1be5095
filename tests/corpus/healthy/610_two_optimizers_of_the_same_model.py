import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
coarse = torch.optim.Adam(model.parameters(), lr=0.01)
fine = torch.optim.AdamW(model[2].parameters(), lr=0.001)
for step in range(50):
    optimizer = fine if step % 5 == 4 else coarse
    loss = model(torch.randn(16, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
