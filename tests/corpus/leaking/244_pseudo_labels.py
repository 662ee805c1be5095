import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SelfTraining:
    def __init__(self, threshold=0.0):
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.threshold, self.pseudo = threshold, []

    def collect(self, unlabelled):
        probabilities = self.model(unlabelled).softmax(-1)
        if probabilities.max() > self.threshold:
            self.pseudo.append((unlabelled, probabilities))  # leak: holder=pseudo kind=graph lint=accumulate

    def train_step(self):
        x, target = self.pseudo[-1]
        loss = -(target.detach() * self.model(x).log_softmax(-1)).sum(-1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


training = SelfTraining()
for _ in range(20):
    training.collect(torch.randn(6, 8, device=device))
    training.train_step()
