import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.attention_maps = []

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
        self.attention_maps.append(weights)  # leak: holder=attention_maps kind=graph lint=accumulate
        return x + self.out(weights @ v)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        return self.head(self.blocks(x).mean(1))


model = Encoder().to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    loss = model(torch.randn(4, 5, 12, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
