import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
cell = nn.GRUCell(4, 10).to(device)
head = nn.Linear(10, 4).to(device)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=1e-3)
hidden = torch.zeros(2, 10, device=device)
errors = []
for t in range(1, 97):
    x = torch.randn(2, 4, device=device)
    hidden = cell(x, hidden)
    errors.append((head(hidden) - x).square().mean())
    if t % 4 == 0:
        optimizer.zero_grad()
        torch.stack(errors).sum().backward()
        optimizer.step()
        errors = []
        hidden = hidden.detach()
