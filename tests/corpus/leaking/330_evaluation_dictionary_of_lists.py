import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def collect(model, loader):
    """Collect the logits and labels for the report."""
    model.eval()
    outputs = {"logits": [], "labels": []}
    for images, labels in loader:
        logits = model(images.to(device))  # lint: no-grad
        for key, value in (("logits", logits), ("labels", labels.tolist())):
            outputs[key].append(value)  # leak: holder=outputs kind=graph lint=accumulate
    return outputs


data = TensorDataset(torch.randn(240, 12), torch.randint(0, 5, (240,)))
model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 5)).to(device)
print(len(collect(model, DataLoader(data, batch_size=10))["logits"]))
