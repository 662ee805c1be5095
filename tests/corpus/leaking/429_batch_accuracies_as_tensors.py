import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def binary_acc(y_pred, y_test):
    y_pred_tag = torch.round(torch.sigmoid(y_pred))
    return (y_pred_tag == y_test).float().mean() * 100


data = TensorDataset(torch.randn(208, 13), torch.randint(0, 2, (208, 1)).float())
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(13, 26), nn.ReLU(), nn.Linear(26, 1)).to(device)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
losses, accs = [], []
for e in range(1, 3):
    for X_batch, y_batch in loader:
        X_batch, y_batch = X_batch.to(device), y_batch.to(device)
        optimizer.zero_grad()
        y_pred = model(X_batch)
        loss = criterion(y_pred, y_batch)
        acc = binary_acc(y_pred, y_batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        accs.append(acc)  # leak: holder=accs kind=tensor
    print(f"Epoch {e}: Loss {sum(losses) / len(losses):.4f} Acc {sum(accs) / len(accs):.2f}")
