import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class AUROC:
    def __init__(self):
        self.reset()

    def reset(self):
        self.preds, self.target = [], []

    def update(self, preds, target):
        self.preds.append(preds)  # leak: holder=preds kind=graph
        self.target.append(target.tolist())

    def compute(self):
        return torch.cat(self.preds).mean().item()


metric = AUROC()
data = TensorDataset(torch.randn(192, 10), torch.randint(0, 2, (192,)))
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        logits = model(x.to(device)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y.float().to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric.update(torch.sigmoid(logits), y)  # also: lint=accumulate
    print(epoch, metric.compute())
