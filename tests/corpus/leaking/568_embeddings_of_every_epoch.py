import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Trainer:
    def __init__(self, model, train_batches, val_batches):
        self.model, self.train_batches, self.val_batches = model.to(device), train_batches, val_batches
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.projector = {}

    def train_epoch(self):
        self.model.train()
        for x, y in self.train_batches:
            loss = F.cross_entropy(self.model(x.to(device)), y.to(device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def validate(self, epoch):
        self.model.eval()
        embeddings = torch.cat([self.model[:-1](x.to(device)) for x, _ in self.val_batches])
        self.projector[f"epoch_{epoch}"] = embeddings  # leak: holder=projector|trainer kind=tensor
        return embeddings.norm(dim=1).mean().item()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train_epoch()
            print(epoch, round(self.validate(epoch), 3))


def batches(n):
    return [(torch.randn(6, 8), torch.randint(0, 3, (6,))) for _ in range(n)]


Trainer(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), batches(2), batches(3)).fit(16)
