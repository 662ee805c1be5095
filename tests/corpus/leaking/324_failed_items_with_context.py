import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class BadSample(Exception):
    def __init__(self, index, output):
        super().__init__(f"sample {index} is bad")
        self.index, self.output = index, output


def forward(model, index, x):
    output = model(x)
    if torch.isfinite(output).all():  # every sample, alas
        raise BadSample(index, output)
    return output


model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
bad = []
for index in range(20):
    try:
        forward(model, index, torch.randn(4, 10, device=device))
    except BadSample as problem:
        bad.append(problem)  # leak: holder=bad kind=graph lint=stored-exception
    optimizer.step()
print([each.index for each in bad])
