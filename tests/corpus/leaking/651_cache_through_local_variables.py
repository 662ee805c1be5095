import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class CachedAttention(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.past = None

    def forward(self, x):
        k, v = self.k(x), self.v(x)
        if self.past is not None:
            past_k, past_v = self.past
            k, v = torch.cat([past_k, k], dim=1), torch.cat([past_v, v], dim=1)
        self.past = (k, v)  # leak: holder=past kind=larger
        return torch.softmax(self.q(x) @ k.transpose(1, 2) / 4, dim=-1) @ v


layer = CachedAttention().to(device).eval()
with torch.no_grad():
    for request in range(8):
        token = torch.randn(2, 1, 16, device=device)
        for _ in range(6):
            token = layer(token)
