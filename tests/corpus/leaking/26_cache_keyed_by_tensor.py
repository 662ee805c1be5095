import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.cache = {}

    def forward(self, x):
        if id(x) not in self.cache:
            self.cache[id(x)] = x.cumsum(1)  # leak: holder=cache kind=tensor
        return self.query(x) + self.cache[id(x)]


layer = Attention().to(device)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
inputs = [torch.randn(4, 6, 8, device=device) for _ in range(64)]
for x in inputs:
    loss = layer(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
