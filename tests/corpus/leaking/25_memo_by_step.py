import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
masks = {}


def causal_mask(length, step):
    key = (length, step)
    if key not in masks:
        masks[key] = torch.full((length, length), float("-inf"), device=device).triu(1)  # leak: holder=masks kind=tensor
    return masks[key]


model = nn.Linear(8, 8).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(60):
    x = torch.randn(2, 10, 8, device=device)
    scores = model(x) @ x.transpose(1, 2) + causal_mask(10, step)
    loss = scores.softmax(-1).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
