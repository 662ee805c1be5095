import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class ElasticWeights:
    """Penalizes changes of the weights since the last task."""

    def __init__(self, model, strength=0.1):
        self.model, self.strength, self.anchors = model, strength, []

    def consolidate(self):
        self.anchors.append({name: p.clone() for name, p in self.model.named_parameters()})  # leak: holder=anchors kind=graph

    def penalty(self):
        if not self.anchors:
            return 0.0
        newest = self.anchors[-1]
        return self.strength * sum((p - newest[n].detach()).square().sum() for n, p in self.model.named_parameters())


model = nn.Linear(8, 4).to(device)
elastic = ElasticWeights(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for task in range(20):
    loss = model(torch.randn(9, 8, device=device)).square().mean() + elastic.penalty()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    elastic.consolidate()
