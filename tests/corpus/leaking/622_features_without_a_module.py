import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
weight = torch.randn(64, 64, device=device)
features = []
for chunk in range(60):
    x = torch.randn(128, 64, device=device)
    features.append(torch.relu(x @ weight))  # leak: holder=features kind=tensor
print(len(features))
