import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(32, 16).to(device).eval()
inputs = torch.randn(60 * 8, 32)
result = torch.empty(60 * 8, 16, device=device)
with torch.no_grad():
    for start in range(0, len(inputs), 8):
        result[start : start + 8] = model(inputs[start : start + 8].to(device))
print(result.mean().item())
