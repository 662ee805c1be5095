import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Hub(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.extra = nn.Linear(32, 32), nn.ModuleDict()

    def forward(self, x, user):
        if user not in self.extra:
            self.extra[user] = nn.Linear(32, 32).to(device)  # leak: holder=extra kind=tensor
        return self.base(x) + self.extra[user](x)


hub = Hub().to(device).eval()
with torch.no_grad():
    for visit in range(80):
        user = "guest" if visit % 4 == 0 else f"user{visit}"
        hub(torch.randn(2, 32, device=device), user)
