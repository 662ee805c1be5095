import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class CachedAttention(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.keys, self.values = None, None

    def forward(self, x):
        k, v = self.k(x), self.v(x)
        if self.keys is not None:
            k, v = torch.cat([self.keys, k], dim=1), torch.cat([self.values, v], dim=1)
        self.keys, self.values = k, v  # leak: holder=keys|values kind=graph lint=hidden-state
        return torch.softmax(self.q(x) @ k.transpose(1, 2) / 4, dim=-1) @ v


layer = CachedAttention().to(device).eval()
score = 0.0
for step in range(20):
    token = torch.randn(2, 1, 16, device=device)
    out = layer(token)  # lint: no-grad
    score += out.mean().item()
print(score)
