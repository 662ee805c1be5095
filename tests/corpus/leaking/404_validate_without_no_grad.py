import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def validate(model, val_loader, criterion, device):
    model.eval()
    val_loss = 0.0
    correct = 0
    for images, labels in val_loader:
        images = images.to(device)
        labels = labels.to(device)
        outputs = model(images)  # lint: no-grad
        val_loss += criterion(outputs, labels)  # leak: holder=val_loss kind=graph lint=accumulate
        correct += (outputs.argmax(dim=1) == labels).sum().item()
    return val_loss / len(val_loader), correct / len(val_loader.dataset)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    X, y = torch.randn(260, 14), torch.randint(0, 3, (260,))
    train_loader = DataLoader(TensorDataset(X[:60], y[:60]), batch_size=10)
    val_loader = DataLoader(TensorDataset(X[60:], y[60:]), batch_size=5)
    model = nn.Sequential(nn.Linear(14, 28), nn.ReLU(), nn.Dropout(0.2), nn.Linear(28, 3)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
    loss, acc = validate(model, val_loader, criterion, device)
    print(f"val loss {loss:.4f} acc {acc:.3f}")


main()
