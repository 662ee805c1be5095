import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Experiment:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 3)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.outputs = []

    def train(self, steps):
        self.model.train()
        for _ in range(steps):
            loss = self.model(torch.randn(8, 6, device=device)).logsumexp(-1).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def evaluate(self, batches):
        self.model.eval()
        self.outputs = []
        with torch.inference_mode():
            for _ in range(batches):
                self.outputs.append(self.model(torch.randn(8, 6, device=device)))
        return torch.cat(self.outputs).argmax(1).float().mean().item()


experiment = Experiment()
scores = []
for phase in range(6):
    experiment.train(5)
    scores.append(experiment.evaluate(3 + phase % 2))
