import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def train_one_epoch(model, loader, criterion, optimizer, device):
    model.train()
    total, correct, seen = 0.0, 0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        logits = model(x)
        loss = criterion(logits, y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
        correct += (logits.argmax(1) == y).sum().item()
        seen += len(x)
    return total / seen, correct / seen


@torch.no_grad()
def evaluate(model, loader, criterion, device):
    model.eval()
    total = torch.zeros((), device=device)
    outputs = []
    for x, y in loader:
        logits = model(x.to(device))
        total += criterion(logits, y.to(device)) * len(x)
        outputs.append(logits.cpu())
    return (total / len(loader.dataset)).item(), torch.cat(outputs).std().item()


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, y = torch.randn(120, 14), torch.randint(0, 3, (120,))
    train_loader = DataLoader(TensorDataset(X[:80], y[:80]), batch_size=10, shuffle=True)
    val_loader = DataLoader(TensorDataset(X[80:], y[80:]), batch_size=10)
    model = nn.Sequential(nn.Linear(14, 28), nn.ReLU(), nn.Linear(28, 3)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    history = []
    for epoch in range(4):
        history.append((*train_one_epoch(model, train_loader, criterion, optimizer, device), *evaluate(model, val_loader, criterion, device)))
    print(history[-1])


main()
