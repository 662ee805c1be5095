import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, loader):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.loader = loader
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.train_losses = []
        self.last_loss = None

    def _run_batch(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.last_loss = loss
        return loss

    def train(self, epochs):
        for _ in range(epochs):
            for x, y in self.loader:
                loss = self._run_batch(x.to(self.device), y.to(self.device))
                self.train_losses.append(loss.item())


x = torch.randn(120, 20)
trainer = Trainer(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 1)), DataLoader(TensorDataset(x, x[:, :1]), batch_size=15))
trainer.train(4)
print(sum(trainer.train_losses) / len(trainer.train_losses), trainer.last_loss.item())
