import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SelfResetting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 12)
        self.head = nn.Linear(12, 2)

    def reset_head(self):
        self.head = nn.Linear(12, 2).to(device)
        return self.head.parameters()


model = SelfResetting().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for task in range(20):
    group = optimizer.param_groups[0]
    group["params"].extend(model.reset_head())  # leak: holder=params|optimizer|group|param_groups kind=tensor
    x, y = torch.randn(10, 8, device=device), torch.randint(0, 2, (10,), device=device)
    loss = nn.functional.cross_entropy(model.head(model.body(x).relu()), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
