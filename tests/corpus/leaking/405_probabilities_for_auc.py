import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
test_data = TensorDataset(torch.randn(300, 16), torch.randint(0, 2, (300,)))
test_loader = DataLoader(test_data, batch_size=10, shuffle=False)
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)).to(device)


def get_predictions(model, loader):
    model.eval()
    all_labels = []
    all_probs = []
    for x, y in loader:
        logits = model(x.to(device))  # lint: no-grad
        probs = torch.softmax(logits, dim=1)[:, 1]
        all_probs.append(probs)  # leak: holder=all_probs kind=graph lint=accumulate
        all_labels.extend(y.tolist())
    return torch.cat(all_probs), all_labels


scores, labels = get_predictions(model, test_loader)
print("positives", sum(labels), "mean score", scores.mean().item())
