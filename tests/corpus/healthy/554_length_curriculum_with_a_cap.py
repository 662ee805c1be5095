import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def length_at(step):
    """Return a length that grows every second step, up to 14."""
    return min(14, 4 + step // 2)


model = nn.LSTM(3, 10, batch_first=True).to(device)
head = nn.Linear(10, 3).to(device)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
loss_by_length = {}
for step in range(60):
    series = torch.cumsum(torch.randn(4, length_at(step) + 1, 3, device=device), dim=1)
    out, _ = model(series[:, :-1])
    loss = (head(out) - series[:, 1:]).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss_by_length[length_at(step)] = loss.item()
print(loss_by_length)
