import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
from torch.utils.data import DataLoader, TensorDataset


def validate(model, loader):
    model.eval()
    results = {"loss": 0, "correct": 0}
    for x, y in loader:
        logits = model(x.to(device))  # lint: no-grad
        results["loss"] += nn.functional.cross_entropy(logits, y.to(device))  # leak: holder=results kind=graph lint=accumulate
        results["correct"] += (logits.argmax(1).cpu() == y).sum()
    return results


model = nn.Sequential(nn.Linear(18, 36), nn.ReLU(), nn.Linear(36, 4)).to(device)
data = TensorDataset(torch.randn(320, 18), torch.randint(0, 4, (320,)))
print(validate(model, DataLoader(data, batch_size=16))["correct"])
