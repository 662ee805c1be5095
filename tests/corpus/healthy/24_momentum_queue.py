import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
import torch.nn.functional as F


class Moco(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(10, 8)
        self.register_buffer("queue", F.normalize(torch.randn(64, 8), dim=1))
        self.pointer = 0

    def forward(self, x):
        q = F.normalize(self.encoder(x), dim=1)
        logits = q @ self.queue.clone().T
        with torch.no_grad():
            self.queue[self.pointer : self.pointer + 8] = q
        self.pointer = (self.pointer + 8) % 64
        return logits


model = Moco().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    loss = model(torch.randn(8, 10, device=device)).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
