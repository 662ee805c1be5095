import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class VectorQuantizer(nn.Module):
    def __init__(self, codes=8, dim=4, decay=0.99):
        super().__init__()
        self.decay = decay
        self.register_buffer("codebook", torch.randn(codes, dim))
        self.register_buffer("cluster_size", torch.ones(codes))
        self.register_buffer("embed_avg", self.codebook.clone())

    def forward(self, z):
        one_hot = F.one_hot(torch.cdist(z, self.codebook).argmin(dim=1), len(self.codebook)).type_as(z)
        quantised = one_hot @ self.codebook
        if self.training:
            with torch.no_grad():
                self.cluster_size.mul_(self.decay).add_(one_hot.sum(0), alpha=1 - self.decay)
                self.embed_avg.mul_(self.decay).add_(one_hot.t() @ z, alpha=1 - self.decay)
                self.codebook.copy_(self.embed_avg / self.cluster_size[:, None])
        return z + (quantised - z).detach(), F.mse_loss(z, quantised.detach())


encoder, decoder, vq = nn.Linear(12, 4).to(device), nn.Linear(4, 12).to(device), VectorQuantizer().to(device)
opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for it in range(30):
    x = torch.randn(10, 12, device=device)
    q, commitment = vq(encoder(x))
    loss = F.mse_loss(decoder(q), x) + 0.25 * commitment
    opt.zero_grad()
    loss.backward()
    opt.step()
