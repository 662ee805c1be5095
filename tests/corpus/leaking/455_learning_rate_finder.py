import torch
from torch import nn


class LRFinder:
    def __init__(self, model, optimizer, criterion, device):
        self.model, self.optimizer, self.criterion, self.device = model, optimizer, criterion, device
        self.history = {"lr": [], "loss": []}
        self.best_loss = None

    def range_test(self, batches, start_lr=1e-6, end_lr=1e-1):
        factor = (end_lr / start_lr) ** (1 / len(batches))
        lr = start_lr
        for x, y in batches:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            loss = self._train_batch(x.to(self.device), y.to(self.device))
            if self.history["loss"]:
                loss = 0.1 * loss + 0.9 * self.history["loss"][-1]  # also:
            if self.best_loss is None or loss < self.best_loss:
                self.best_loss = loss
            self.history["lr"].append(lr)
            self.history["loss"].append(loss)  # leak: holder=history kind=graph lint=accumulate
            lr *= factor

    def _train_batch(self, x, y):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss


device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 1)).to(device)
finder = LRFinder(model, torch.optim.SGD(model.parameters(), lr=1e-6), nn.MSELoss(), device)
finder.range_test([(torch.randn(8, 10), torch.randn(8, 1)) for _ in range(24)])
