"""The VAE example: reparameterization with randn_like, summed BCE, KL divergence, samples copied to the host."""

import torch
from torch import nn, optim
from torch.nn import functional as F

torch.manual_seed(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 40)
        self.fc21, self.fc22 = nn.Linear(40, 8), nn.Linear(40, 8)
        self.fc3, self.fc4 = nn.Linear(8, 40), nn.Linear(40, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    train_loss = 0
    for _ in range(3):
        data = torch.rand(16, 1, 8, 8).to(device)
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        BCE = F.binary_cross_entropy(recon, data.view(-1, 64), reduction="sum")
        KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = BCE + KLD
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print(epoch, train_loss)
    with torch.no_grad():
        sample = torch.randn(4, 8).to(device)
        sample = model.decode(sample).cpu()
        print(
            sample.view(4, 1, 8, 8).numpy().sum(),
            torch.cat([data.cpu()[:2], recon.cpu()[:2].view(2, 1, 8, 8)]).sum(),
        )
