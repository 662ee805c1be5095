import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MoCo(nn.Module):
    def __init__(self, dim=8, K=32, T=0.2):
        super().__init__()
        self.K, self.T = K, T
        self.encoder_q = nn.Sequential(nn.Linear(14, 28), nn.ReLU(), nn.Linear(28, dim))
        self.encoder_k = nn.Sequential(nn.Linear(14, 28), nn.ReLU(), nn.Linear(28, dim))
        self.queue = F.normalize(torch.randn(K, dim, device=device), dim=1)

    def _dequeue_and_enqueue(self, keys):
        self.queue = torch.cat([self.queue, keys])[-self.K :]  # leak: holder=queue kind=graph

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        k = F.normalize(self.encoder_k(im_k), dim=1)
        l_pos = (q * k.detach()).sum(1, keepdim=True)
        l_neg = q @ self.queue.detach().T
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        self._dequeue_and_enqueue(k)  # also: lint=accumulate
        return logits, torch.zeros(len(q), dtype=torch.long, device=device)


model = MoCo().to(device)
optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.03, momentum=0.9)
for step in range(24):
    x = torch.randn(4, 14, device=device)
    logits, labels = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
    loss = F.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
