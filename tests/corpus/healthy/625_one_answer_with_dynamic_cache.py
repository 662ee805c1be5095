import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Cache:
    def __init__(self):
        self.layers = {}

    def update(self, key, layer):
        old = self.layers.get(layer)
        self.layers[layer] = key if old is None else torch.cat([old, key], dim=1)
        return self.layers[layer]


class Model(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, cache):
        x = x + cache.update(self.first(x), 0).mean(1, keepdim=True)
        return x + cache.update(self.second(x), 1).mean(1, keepdim=True)


@torch.no_grad()
def generate(model, x, length):
    cache = Cache()
    for _ in range(length):
        x = model(x, cache)
    return x


print(generate(Model().to(device).eval(), torch.randn(1, 1, 16, device=device), 50).norm().item())
