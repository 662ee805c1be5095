import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class CachedAttention(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.reset()

    def reset(self):
        self.keys, self.values = None, None

    def forward(self, x):
        k, v = self.k(x), self.v(x)
        self.keys = k if self.keys is None else torch.cat([self.keys, k], dim=1)
        self.values = v if self.values is None else torch.cat([self.values, v], dim=1)
        return torch.softmax(self.q(x) @ self.keys.transpose(1, 2), dim=-1) @ self.values


layer = CachedAttention().to(device)
optimizer = torch.optim.Adam(layer.parameters())
for sequence in range(14):
    layer.reset()
    tokens = torch.randn(2, 6, 8, device=device)
    outputs = [layer(tokens[:, t : t + 1]) for t in range(5)]
    loss = (torch.cat(outputs, dim=1) - tokens[:, 1:]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
