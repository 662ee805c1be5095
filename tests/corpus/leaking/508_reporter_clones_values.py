import contextlib

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Reporter:
    def __init__(self):
        self.observation = {}

    @contextlib.contextmanager
    def scope(self, observation):
        old, self.observation = self.observation, observation
        yield
        self.observation = old

    def report(self, values):
        for name, value in values.items():
            self.observation["main/" + name] = value.clone() if torch.is_tensor(value) else value


class LogReport:
    def __init__(self):
        self.log = []

    def __call__(self, observation):
        self.log.append(observation)  # leak: holder=log|log_report kind=graph


reporter, log_report = Reporter(), LogReport()


def iteration(model, optimizer, x, t):
    y = model(x)
    loss = nn.functional.cross_entropy(y, t)
    reporter.report({"loss": loss, "batch": len(x)})  # also:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


model = nn.Sequential(nn.Linear(7, 21), nn.ReLU(), nn.Linear(21, 3)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for i in range(25):
    observation = {}
    with reporter.scope(observation):
        iteration(model, optimizer, torch.randn(5, 7, device=device), torch.randint(0, 3, (5,), device=device))
    log_report(observation)  # also:
print(len(log_report.log), "entries")
