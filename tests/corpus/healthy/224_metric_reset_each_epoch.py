import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class F1:
    def __init__(self):
        self.reset()

    def reset(self):
        self.state = {"preds": [], "target": []}

    def update(self, preds, target):
        self.state["preds"].append(preds.detach())
        self.state["target"].append(target)

    def compute(self):
        preds, target = torch.cat(self.state["preds"]).argmax(1), torch.cat(self.state["target"])
        hits = ((preds == 1) & (target == 1)).sum().item()
        return 2 * hits / max(1, (preds == 1).sum().item() + (target == 1).sum().item())


metric = F1()
data = TensorDataset(torch.randn(64, 9), torch.randint(0, 2, (64,)))
model = nn.Linear(9, 2).to(device)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(5):
    for x, y in DataLoader(data, batch_size=16):
        x, y = x.to(device), y.to(device)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric.update(logits, y)
    print(epoch, metric.compute())
    metric.reset()
