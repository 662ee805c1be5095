import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Rotary(nn.Module):
    def __init__(self, dim=8, base=10000):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)))
        self.max_seq_len_cached = 0
        self.cos_cached = self.sin_cached = None

    def forward(self, x):
        seq_len = x.size(1)
        if seq_len > self.max_seq_len_cached:
            self.max_seq_len_cached = seq_len
            t = torch.arange(seq_len, device=x.device).float()
            angles = torch.cat([torch.outer(t, self.inv_freq)] * 2, dim=-1)
            self.cos_cached, self.sin_cached = angles.cos(), angles.sin()
        rotated = torch.cat([-x[..., 4:], x[..., :4]], dim=-1)
        return x * self.cos_cached[:seq_len] + rotated * self.sin_cached[:seq_len]


rotary = Rotary().to(device)
projection = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(projection.parameters(), lr=0.1)
lengths = [5, 9, 6, 12, 16, 7, 16, 11, 14, 16] * 4
for length in lengths:
    x = torch.randn(3, length, 8, device=device)
    loss = (rotary(projection(x)) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
