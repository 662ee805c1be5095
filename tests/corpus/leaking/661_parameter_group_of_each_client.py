import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
head = nn.Linear(24, 4).to(device)
optimizer = torch.optim.AdamW(head.parameters())


def client(x):
    shift = nn.Parameter(torch.zeros(24, device=device))
    optimizer.add_param_group({"params": [shift]})  # leak: holder=optimizer kind=tensor
    for _ in range(2):
        loss = head(x + shift).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


for _ in range(50):
    client(torch.randn(8, 24, device=device))
