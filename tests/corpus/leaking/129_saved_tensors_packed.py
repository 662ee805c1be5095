import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class ActivationStats:
    """Collects the tensors that autograd saves, to measure their sizes."""

    def __init__(self):
        self.saved = []

    def pack(self, tensor):
        self.saved.append(tensor)  # leak: holder=saved kind=tensor|graph
        return tensor

    def unpack(self, tensor):
        return tensor


stats = ActivationStats()
model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    x = torch.randn(6, 8, device=device)
    with torch.autograd.graph.saved_tensors_hooks(stats.pack, stats.unpack):
        loss = model(x).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
