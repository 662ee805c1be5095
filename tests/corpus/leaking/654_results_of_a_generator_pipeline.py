import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).to(device).eval()


def batches(count):
    for _ in range(count):
        yield torch.randn(8, 16, device=device)


def predict(model, source):
    with torch.no_grad():
        for x in source:
            yield model(x)


results = []
for out in predict(model, batches(40)):
    results.append(out)  # leak: holder=results kind=tensor
