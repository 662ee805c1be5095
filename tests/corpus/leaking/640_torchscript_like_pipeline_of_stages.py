import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Pipeline:
    def __init__(self, *stages):
        self.stages = stages
        self.trace = []

    def __call__(self, x):
        for stage in self.stages:
            x = stage(x)
            self.trace.append((type(stage).__name__, x))  # leak: holder=trace kind=tensor
        return x


pipeline = Pipeline(nn.Linear(16, 32).to(device), nn.ReLU(), nn.Linear(32, 4).to(device))
with torch.no_grad():
    for _ in range(40):
        pipeline(torch.randn(8, 16, device=device))
