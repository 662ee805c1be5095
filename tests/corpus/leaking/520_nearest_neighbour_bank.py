import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def knn_monitor(net, memory_loader, test_loader, k=5, classes=4):
    net.eval()
    feature_bank, labels = [], []
    for data, target in memory_loader:
        feature = F.normalize(net(data.to(device)), dim=1)  # lint: no-grad
        feature_bank.append(feature)  # leak: holder=feature_bank|labels kind=graph lint=accumulate
        labels.append(target.to(device))  # also:
    bank, labels = torch.cat(feature_bank).t().contiguous(), torch.cat(labels)
    hits = total = 0
    with torch.no_grad():
        for data, target in test_loader:
            similarity = F.normalize(net(data.to(device)), dim=1) @ bank
            votes = labels[similarity.topk(k, dim=1).indices]
            hits += (votes.mode(dim=1).values.cpu() == target).sum().item()
            total += len(target)
    return 100.0 * hits / total


x, y = torch.randn(240, 18), torch.randint(0, 4, (240,))
backbone = nn.Sequential(nn.Linear(18, 36), nn.BatchNorm1d(36), nn.ReLU(), nn.Linear(36, 8)).to(device)
memory = DataLoader(TensorDataset(x[:180], y[:180]), batch_size=6)
test = DataLoader(TensorDataset(x[180:], y[180:]), batch_size=30)
print(f"kNN accuracy {knn_monitor(backbone, memory, test):.1f}%")
