import copy

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class EarlyStopping:
    def __init__(self, patience=100):
        self.patience, self.counter = patience, 0
        self.best_score, self.best_weights = None, None

    def __call__(self, val_loss, model):
        if self.best_score is None or val_loss < self.best_score:
            self.best_score, self.counter = val_loss, 0
            self.best_weights = copy.deepcopy(model.state_dict())
        else:
            self.counter += 1
        return self.counter >= self.patience


x_train, x_val = torch.randn(32, 7, device=device), torch.randn(16, 7, device=device)
model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
stopper = EarlyStopping()
for epoch in range(28):
    model.train()
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x_train), x_train[:, :1]).backward()
    optimizer.step()
    model.eval()
    with torch.inference_mode():
        val_loss = nn.functional.mse_loss(model(x_val), x_val[:, :1]).item()
    if stopper(val_loss, model):
        break
model.load_state_dict(stopper.best_weights)
