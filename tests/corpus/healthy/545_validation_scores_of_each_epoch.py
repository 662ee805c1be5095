import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def auc(scores, labels):
    order = scores.argsort()
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(scores))
    positives = labels == 1
    n_pos, n_neg = positives.sum(), (~positives).sum()
    return ((ranks[positives] + 1).sum() - n_pos * (n_pos + 1) / 2).item() / (n_pos * n_neg).item()


def validate(model, loader):
    model.eval()
    outputs, targets = [], []
    with torch.no_grad():
        for x, y in loader:
            outputs.append(torch.sigmoid(model(x.to(device))).squeeze(1).cpu())
            targets.append(y)
    return auc(torch.cat(outputs), torch.cat(targets))


x = torch.randn(120, 10)
data = TensorDataset(x, (x[:, 0] > 0).long())
loader = DataLoader(data, batch_size=12)
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
aucs = []
for epoch in range(4):
    model.train()
    for xb, yb in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(xb.to(device)).squeeze(1), yb.float().to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    aucs.append(validate(model, loader))
print(aucs)
