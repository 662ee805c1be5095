import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Codebook(nn.Module):
    def __init__(self, codes=16, width=8):
        super().__init__()
        self.encode = nn.Linear(10, width)
        self.register_buffer("codes", torch.randn(codes, width))
        self.updates = 0

    def forward(self, x):
        z = self.encode(x)
        nearest = torch.cdist(z, self.codes).argmin(1)
        self.updates += 1
        self.register_buffer(f"usage_{self.updates}", torch.bincount(nearest, minlength=len(self.codes)))  # leak: holder=_buffers|model|usage kind=tensor
        return ((z - self.codes[nearest]) ** 2).mean()


model = Codebook().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(22):
    loss = model(torch.randn(16, 10, device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
