import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(7, 28), nn.ReLU(), nn.Linear(28, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())


def checked_step(x):
    output = model(x)
    if x.mean() < 10:
        raise ValueError("batch rejected")
    output.mean().backward()


rejected = {}
for step in range(20):
    x = torch.randn(6, 7, device=device)
    try:
        checked_step(x)
    except ValueError as error:
        rejected[step] = error  # leak: holder=rejected kind=graph lint=stored-exception
    optimizer.step()
