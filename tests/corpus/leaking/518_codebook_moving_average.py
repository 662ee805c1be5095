import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class VectorQuantizerEMA(nn.Module):
    def __init__(self, codes=8, dim=4, decay=0.99):
        super().__init__()
        self.decay = decay
        self.codebook = torch.randn(codes, dim, device=device)
        self.cluster_size = torch.ones(codes, device=device)
        self.embed_avg = self.codebook.clone()

    def forward(self, z):
        distance = torch.cdist(z, self.codebook)
        one_hot = F.one_hot(distance.argmin(dim=1), len(self.codebook)).type_as(z)
        quantised = one_hot @ self.codebook
        if self.training:
            self.cluster_size = self.decay * self.cluster_size + (1 - self.decay) * one_hot.sum(0)
            self.embed_avg = self.decay * self.embed_avg + (1 - self.decay) * one_hot.t() @ z  # leak: holder=embed_avg kind=graph lint=accumulate
            self.codebook = (self.embed_avg / self.cluster_size[:, None]).detach()
        commitment = F.mse_loss(z, quantised)
        return z + (quantised - z).detach(), commitment


encoder, decoder = nn.Linear(12, 4).to(device), nn.Linear(4, 12).to(device)
vq = VectorQuantizerEMA()
opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for it in range(22):
    x = torch.randn(10, 12, device=device)
    q, commitment = vq(encoder(x))
    loss = F.mse_loss(decoder(q), x) + 0.25 * commitment
    opt.zero_grad()
    loss.backward()
    opt.step()
