import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class EarlyStopping:
    def __init__(self, patience=4, delta=0.0):
        self.patience, self.delta = patience, delta
        self.counter, self.best_score, self.early_stop = 0, None, False
        self.best_state = None

    def __call__(self, val_loss, model):
        score = -val_loss
        if self.best_score is None or score > self.best_score + self.delta:
            self.best_score = score
            self.best_state = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
            self.counter = 0
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience


data = TensorDataset(torch.randn(60, 8), torch.randn(60, 1))
train_loader, val_loader = DataLoader(data, batch_size=12, shuffle=True), DataLoader(data, batch_size=30)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
stopper = EarlyStopping()
for epoch in range(10):
    for x, y in train_loader:
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        val_loss = sum(nn.functional.mse_loss(model(x.to(device)), y.to(device)) for x, y in val_loader) / len(val_loader)
    stopper(val_loss.item(), model)
    if stopper.early_stop:
        break
model.load_state_dict(stopper.best_state)
