import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MoCoQueue(nn.Module):
    def __init__(self, size=40, width=8):
        super().__init__()
        self.register_buffer("queue", F.normalize(torch.randn(size, width), dim=1))
        self.pointer = 0

    @torch.no_grad()
    def enqueue(self, keys):
        n = len(keys)
        self.queue[self.pointer : self.pointer + n] = keys
        self.pointer = (self.pointer + n) % len(self.queue)


encoder = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8)).to(device)
bank = MoCoQueue().to(device)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03)
for step in range(26):
    z = F.normalize(encoder(torch.randn(8, 16, device=device)), dim=1)
    loss = (z @ bank.queue.clone().T / 0.1).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bank.enqueue(z)
