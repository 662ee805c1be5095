import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class InstanceDiscrimination(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.bank = None

    def remember(self, z):
        z = z.detach()
        self.bank = z if self.bank is None else torch.cat([self.bank, z], dim=0)  # leak: holder=bank kind=larger

    def forward(self, x):
        z = F.normalize(self.encoder(x), dim=-1)
        negatives = z @ self.bank.T if self.bank is not None else z @ z.detach().T
        self.remember(z)
        return negatives.logsumexp(-1).mean()


model = InstanceDiscrimination().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
for step in range(20):
    loss = model(torch.randn(12, 16, device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
