import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Trainer:
    def __init__(self):
        self.model = nn.Linear(9, 2).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.history = {"train": [], "val": []}

    def train_epoch(self, batches):
        running = 0.0
        for x in batches:
            loss = self.model(x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            running += loss.item()
        return running / len(batches)

    @torch.inference_mode()
    def evaluate(self, batches):
        self.model.eval()
        total = sum(self.model(x).abs().mean() for x in batches)
        self.model.train()
        return float(total) / len(batches)

    def fit(self, epochs):
        for _ in range(epochs):
            batches = [torch.randn(6, 9, device=device) for _ in range(3)]
            self.history["train"].append(self.train_epoch(batches))
            self.history["val"].append(self.evaluate(batches))


Trainer().fit(8)
