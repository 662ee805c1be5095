import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def evaluate(model, loader):
    model.eval()
    criterion = nn.CrossEntropyLoss()
    test_loss = 0
    correct = 0
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        output = model(data)  # lint: no-grad
        test_loss += criterion(output, target)  # leak: holder=test_loss kind=graph lint=accumulate
        correct += (output.argmax(1) == target).sum().item()
    return test_loss / len(loader), correct


model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3)).to(device)
dataset = TensorDataset(torch.randn(640, 30), torch.randint(0, 3, (640,)))
loss, correct = evaluate(model, DataLoader(dataset, batch_size=32))
print(f"loss {loss.item():.3f}, accuracy {correct / len(dataset):.2f}")
