import torch
from torch import nn


class Trainer:
    def __init__(self, model, lr=0.01):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.criterion = nn.MSELoss()
        self.loss_history = []

    def training_step(self, x, y):
        x, y = x.to(self.device), y.to(self.device)
        loss = self.criterion(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.loss_history.append(loss)  # leak: holder=loss_history kind=graph lint=accumulate
        return loss.item()

    def fit(self, steps):
        for _ in range(steps):
            x = torch.randn(64, 10)
            self.training_step(x, x.sum(dim=1, keepdim=True))


trainer = Trainer(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
trainer.fit(20)
