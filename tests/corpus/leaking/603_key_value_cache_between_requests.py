import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Attention(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.k_cache = self.v_cache = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.k_cache is None:
            self.k_cache, self.v_cache = k, v
        else:
            self.k_cache = torch.cat([self.k_cache, k], dim=1)  # leak: holder=k_cache|v_cache kind=larger
            self.v_cache = torch.cat([self.v_cache, v], dim=1)  # also:
        return torch.softmax(q @ self.k_cache.transpose(1, 2), dim=-1) @ self.v_cache


layer = Attention().to(device).eval()
with torch.no_grad():
    for request in range(10):
        token = torch.randn(1, 1, 32, device=device)
        for _ in range(8):
            token = layer(token)
print(token.norm().item())
