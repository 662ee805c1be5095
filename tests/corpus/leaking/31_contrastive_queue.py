import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
import torch.nn.functional as F

encoder = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 16)).to(device)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03)
queue = F.normalize(torch.randn(32, 16, device=device), dim=1)
for step in range(20):
    x = torch.randn(8, 20, device=device)
    q = F.normalize(encoder(x), dim=1)
    with torch.no_grad():
        k = F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
    positive = (q * k).sum(1, keepdim=True)
    logits = torch.cat([positive, q @ queue.T], dim=1) / 0.07
    loss = F.cross_entropy(logits, torch.zeros(8, dtype=torch.long, device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue = torch.cat([queue, k], dim=0)  # leak: holder=queue kind=larger
