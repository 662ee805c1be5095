import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Metric:
    def __init__(self):
        self.reset()

    def reset(self):
        raise NotImplementedError


class AUROC(Metric):
    def reset(self):
        self.preds, self.target = [], []

    def update(self, preds, target):
        self.preds.append(preds.detach())  # leak: holder=preds|target kind=tensor
        self.target.append(target)  # also:

    def compute(self):
        preds, target = torch.cat(self.preds), torch.cat(self.target)
        pos, neg = preds[target == 1], preds[target == 0]
        return (pos[:, None] > neg[None]).float().mean().item()


def train_epoch(model, optimizer, metric, n=10):
    for _ in range(n):
        x = torch.randn(12, 8, device=device)
        y = (x.sum(1) > 0).long()
        logit = model(x).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric.update(logit, y)  # also:
    return metric.compute()


model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
auroc = AUROC()
for epoch in range(4):
    print(epoch, round(train_epoch(model, optimizer, auroc), 3))
