import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 8).to(device).eval()
inputs = torch.randn(50 * 8, 16)
with torch.no_grad():
    outputs = [model(chunk.to(device)) for chunk in inputs.split(8)]  # leak: holder=outputs kind=tensor
print(len(outputs))
