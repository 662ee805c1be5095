import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class DynamicCache:
    def __init__(self):
        self.keys = []

    def update(self, key, layer):
        if len(self.keys) <= layer:
            self.keys.append(key)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key], dim=-2)
        return self.keys[layer]


class Model(nn.Module):
    def __init__(self, width=16, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x, cache):
        for number, layer in enumerate(self.layers):
            keys = cache.update(layer(x), number)
            x = x + keys.mean(-2, keepdim=True)
        return x


model = Model().to(device).eval()
with torch.inference_mode():
    for request in range(6):
        x, cache = torch.randn(1, 1, 16, device=device), DynamicCache()
        for _ in range(20):
            x = model(x, cache)
