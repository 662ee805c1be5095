import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 2)).to(device)
model.eval()
by_user = {}
for user in range(50):
    score = model(torch.randn(1, 12, device=device))  # lint: no-grad
    by_user[user] = score  # leak: holder=by_user kind=graph|tensor
