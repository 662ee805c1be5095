import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Problem(nn.Module):
    """Trains a controller that brings the plant to rest."""

    def __init__(self, nx=2, nu=1, horizon=4):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(nx, 12), nn.GELU(), nn.Linear(12, nu))
        self.register_buffer("A", torch.tensor([[1.0, 0.1], [0.0, 1.0]]))
        self.register_buffer("B", torch.tensor([[0.0], [0.1]]))
        self.horizon = horizon

    def forward(self, data):
        x, cost = data["x0"], 0.0
        for _ in range(self.horizon):
            u = self.policy(x)
            x = x @ self.A.T + u @ self.B.T
            cost = cost + x.pow(2).sum(1).mean() + 0.1 * u.pow(2).sum(1).mean()
        return {data["name"] + "_loss": cost, data["name"] + "_x": x}


class BasicLogger:
    def __init__(self):
        self.output = {}

    def log_metrics(self, output, step):
        for key, value in output.items():
            if key.endswith("_loss"):
                self.output.setdefault(key, []).append(value)  # leak: holder=output|logger kind=graph


class Trainer:
    def __init__(self, problem, optimizer, logger):
        self.problem, self.optimizer, self.logger = problem, optimizer, logger

    def train(self, batches):
        for i, batch in enumerate(batches):
            output = self.problem(batch)
            self.optimizer.zero_grad()
            output["train_loss"].backward()
            self.optimizer.step()
            self.logger.log_metrics(output, step=i)  # also: lint=accumulate


problem = Problem().to(device)
batches = [{"name": "train", "x0": torch.randn(8, 2, device=device)} for _ in range(22)]
Trainer(problem, torch.optim.AdamW(problem.parameters(), lr=3e-3), BasicLogger()).train(batches)
