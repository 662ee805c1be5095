import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MemoryBank:
    def __init__(self):
        self.features = {}

    def write(self, indices, features):
        for index, feature in zip(indices.tolist(), features):
            self.features.setdefault(index, []).append(feature)  # leak: holder=features kind=graph


bank = MemoryBank()
backbone = nn.Linear(12, 6).to(device)
head = nn.Linear(6, 3).to(device)
optimizers = [torch.optim.SGD(backbone.parameters(), lr=0.1), torch.optim.Adam(head.parameters())]
for step in range(20):
    x = torch.randn(4, 12, device=device)
    features = backbone(x)
    loss = nn.functional.cross_entropy(head(features), torch.randint(0, 3, (4,), device=device))
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    bank.write(torch.arange(4), features)  # also: lint=accumulate
