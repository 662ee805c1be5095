import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RandomDataset(Dataset):
    def __init__(self, n=150, dim=20):
        self.x = torch.randn(n, dim)
        self.y = self.x[:, :1] * 2 - self.x[:, 1:2]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, idx):
        return self.x[idx], self.y[idx]


class Trainer:
    def __init__(self, model, train_loader, lr=1e-3):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.train_loader = train_loader
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.train_losses = []
        self.current_epoch = 0

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = self.criterion(output, targets)
        loss.backward()
        self.optimizer.step()
        return loss

    def _run_epoch(self):
        for source, targets in self.train_loader:
            loss = self._run_batch(source.to(self.device), targets.to(self.device))
            self.train_losses.append(loss)  # leak: holder=train_losses kind=graph lint=accumulate

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self.current_epoch = epoch
            self._run_epoch()
            print(f"Epoch {epoch} | last loss {self.train_losses[-1].item():.4f}")


model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 1))
Trainer(model, DataLoader(RandomDataset(), batch_size=15)).train(3)
