import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Dreamer(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.decode = nn.GRUCell(6, 16), nn.Linear(16, 6)
        self.dreams = []

    @torch.no_grad()
    def dream(self, horizon):
        h, x, frames = torch.zeros(4, 16, device=device), torch.randn(4, 6, device=device), []
        for _ in range(horizon):
            h = self.cell(x, h)
            x = self.decode(h)
            frames.append(x)
        self.dreams.append(torch.stack(frames))  # leak: holder=dreams kind=tensor


dreamer = Dreamer().to(device).eval()
for episode in range(40):
    dreamer.dream(5)
