import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
from torch.utils.data import DataLoader, TensorDataset

train_loader = DataLoader(TensorDataset(torch.randn(320, 12), torch.randint(0, 3, (320,))), batch_size=8)
valid_loader = DataLoader(TensorDataset(torch.randn(120, 12), torch.randint(0, 3, (120,))), batch_size=10)
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def evaluate():
    model.eval()
    predictions, targets = [], []
    for x, y in valid_loader:
        predictions.append(model(x.to(device)).argmax(1).cpu())
        targets.append(y)
    model.train()
    return (torch.cat(predictions) == torch.cat(targets)).float().mean().item()


history = []
for step, (x, y) in enumerate(train_loader):
    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        history.append((step, loss.item(), evaluate()))
