from collections import OrderedDict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Service:
    def __init__(self, model, size=8):
        self.model, self.size, self.cache = model, size, OrderedDict()

    @torch.no_grad()
    def handle(self, key):
        if key not in self.cache:
            self.cache[key] = self.model(torch.randn(4, 16, device=device))
            if len(self.cache) > self.size:
                self.cache.popitem(last=False)
        return self.cache[key].sum().item()


service = Service(nn.Linear(16, 16).to(device).eval())
for request in range(80):
    service.handle(request)
