import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8)).to(device).eval()
scores = torch.empty(0, 8, device=device)
for _ in range(50):
    with torch.no_grad():
        scores = torch.cat((scores, model(torch.randn(16, 16, device=device))))  # leak: holder=scores kind=larger
print(scores.shape)
