import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 5)).to(device)
test_loader = DataLoader(TensorDataset(torch.randn(400, 24), torch.randint(0, 5, (400,))), batch_size=20)

model.eval()
all_logits, all_labels = [], []
for features, labels in test_loader:
    logits = model(features.to(device))  # lint: no-grad
    all_logits.append(logits)  # leak: holder=all_logits kind=graph lint=accumulate
    all_labels.append(labels)
predicted = torch.cat(all_logits).argmax(dim=1).cpu()
print("accuracy", (predicted == torch.cat(all_labels)).float().mean().item())
