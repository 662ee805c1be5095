import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class TripletNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, a, p, n):
        a, p, n = self.embed(a), self.embed(p), self.embed(n)
        return F.pairwise_distance(a, p), F.pairwise_distance(a, n)


net = TripletNet().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
running = {}
for batch_idx in range(22):
    anchor = torch.randn(6, 12, device=device)
    d_pos, d_neg = net(anchor, anchor + 0.1 * torch.randn_like(anchor), torch.randn_like(anchor))
    loss = F.relu(d_pos - d_neg + 1.0).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running["loss"] = running.get("loss", 0.0) + loss.item()
    running["pos"] = running.get("pos", 0.0) + d_pos.mean()  # leak: holder=running kind=graph lint=accumulate
    running["neg"] = running.get("neg", 0.0) + d_neg.mean()  # also: lint=accumulate
