import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class DynamicCache:
    def __init__(self):
        self.key_cache = []
        self.value_cache = []

    def update(self, key, value, layer):
        if len(self.key_cache) <= layer:
            self.key_cache.append(key)
            self.value_cache.append(value)
        else:
            self.key_cache[layer] = torch.cat([self.key_cache[layer], key], dim=-2)  # leak: holder=key_cache|value_cache kind=larger
            self.value_cache[layer] = torch.cat([self.value_cache[layer], value], dim=-2)  # also:
        return self.key_cache[layer], self.value_cache[layer]


class Model(nn.Module):
    def __init__(self, width=16, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))

    def forward(self, x, cache):
        for number, layer in enumerate(self.layers):
            q, k, v = layer(x).chunk(3, dim=-1)
            k, v = cache.update(k, v, number)
            x = x + torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v
        return x


model, cache = Model().to(device).eval(), DynamicCache()
with torch.inference_mode():
    for request in range(10):
        x = torch.randn(1, 1, 16, device=device)
        for _ in range(5):
            x = model(x, cache)
