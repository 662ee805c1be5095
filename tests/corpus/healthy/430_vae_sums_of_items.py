import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
encoder, decoder = nn.Linear(24, 6).to(device), nn.Linear(3, 24).to(device)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
train_loss, train_kl, last_sample = 0.0, 0.0, None
for batch_idx in range(28):
    data = torch.rand(8, 24, device=device)
    mu, logvar = encoder(data).chunk(2, dim=1)
    z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
    bce = F.binary_cross_entropy_with_logits(decoder(z), data, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    loss = bce + kld
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    train_loss += loss.item()
    train_kl += kld.detach().cpu().item()
    last_sample = decoder(z)
print(train_loss / 224, train_kl / 224, last_sample.shape)
