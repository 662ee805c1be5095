import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def repackage(hidden):
    if isinstance(hidden, torch.Tensor):
        return hidden.detach()
    return tuple(repackage(h) for h in hidden)


lstm = nn.LSTM(6, 10, batch_first=True).to(device)
head = nn.Linear(10, 6).to(device)
optimizer = torch.optim.SGD([*lstm.parameters(), *head.parameters()], lr=0.1)
hidden = (torch.zeros(1, 2, 10, device=device), torch.zeros(1, 2, 10, device=device))
for segment in range(24):
    x = torch.randn(2, 5, 6, device=device)
    hidden = repackage(hidden)
    output, hidden = lstm(x, hidden)
    loss = (head(output) - x.roll(-1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(lstm.parameters(), 0.25)
    optimizer.step()
