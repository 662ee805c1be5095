import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MoCo(nn.Module):
    def __init__(self, dim=8, K=32):
        super().__init__()
        self.K = K
        self.encoder_q, self.encoder_k = nn.Linear(14, dim), nn.Linear(14, dim)
        self.register_buffer("queue", F.normalize(torch.randn(K, dim), dim=1))
        self.ptr = 0

    @torch.no_grad()
    def _momentum_update(self, m=0.99):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.mul_(m).add_(q, alpha=1 - m)

    @torch.no_grad()
    def _enqueue(self, keys):
        self.queue[self.ptr : self.ptr + len(keys)] = keys
        self.ptr = (self.ptr + len(keys)) % self.K

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().T], dim=1) / 0.2
        self._enqueue(k)
        return logits


model = MoCo().to(device)
optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.03, momentum=0.9)
for step in range(26):
    x = torch.randn(4, 14, device=device)
    logits = model(x + 0.1 * torch.randn_like(x), x)
    loss = F.cross_entropy(logits, torch.zeros(4, dtype=torch.long, device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
