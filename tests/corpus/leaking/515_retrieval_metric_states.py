import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Metric:
    def __init__(self):
        self._defaults = {}

    def add_state(self, name, default):
        self._defaults[name] = default
        setattr(self, name, list(default))

    def reset(self):
        for name, default in self._defaults.items():
            setattr(self, name, list(default))


class RetrievalMRR(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("indexes", [])
        self.add_state("preds", [])
        self.add_state("target", [])

    def __call__(self, preds, target, indexes):
        self.indexes.append(indexes)  # also:
        self.preds.append(preds.detach())  # leak: holder=preds|target|indexes kind=tensor
        self.target.append(target)  # also:
        rank = (preds > preds.gather(1, target[:, None])).sum(1) + 1
        return (1 / rank).mean().item()


query_tower, item_tower = nn.Linear(10, 6).to(device), nn.Linear(14, 6).to(device)
optimizer = torch.optim.Adagrad([*query_tower.parameters(), *item_tower.parameters()], lr=0.05)
train_mrr = RetrievalMRR()
for epoch in range(3):
    for step in range(9):
        logits = query_tower(torch.randn(8, 10, device=device)) @ item_tower(torch.randn(8, 14, device=device)).T
        labels = torch.arange(8, device=device)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mrr = train_mrr(logits, labels, labels + step * 8)  # also:
    print(f"epoch {epoch} mrr {mrr:.3f}")
