import torch
from torch import nn


class EarlyStopping:
    def __init__(self, patience=50, delta=0.0):
        self.patience, self.delta = patience, delta
        self.scores = []
        self.counter = 0

    def __call__(self, val_loss):
        self.scores.append(val_loss)  # leak: holder=scores kind=graph
        if len(self.scores) > 1 and val_loss > min(self.scores[:-1]) - self.delta:
            self.counter += 1
        return self.counter >= self.patience


device = "cuda" if torch.cuda.is_available() else "cpu"
x_train, x_val = torch.randn(32, 7, device=device), torch.randn(16, 7, device=device)
model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.MSELoss()
stopper = EarlyStopping()

for epoch in range(24):
    model.train()
    optimizer.zero_grad()
    loss = criterion(model(x_train), x_train[:, :1])
    loss.backward()
    optimizer.step()

    model.eval()
    val_loss = criterion(model(x_val), x_val[:, :1])  # lint: no-grad
    if stopper(val_loss):  # also: lint=accumulate
        print("stopped early")
        break
