import time

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Run:
    """An experiment tracker that works offline."""

    def __init__(self, project, config):
        self.project, self.config = project, config
        self.rows = []

    def log(self, payload, step=None):
        self.rows.append(dict(payload, _step=step, _time=time.time()))  # leak: holder=rows|run kind=graph

    def finish(self):
        print(self.project, len(self.rows), "rows")


config = dict(lr=1e-3, width=20)
run = Run("toy", config)
model = nn.Sequential(nn.Linear(5, config["width"]), nn.ReLU(), nn.Linear(config["width"], 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
for step in range(24):
    x = torch.randn(16, 5, device=device)
    loss = (model(x) - x.prod(1, keepdim=True)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log({"train/loss": loss, "lr": config["lr"]}, step=step)  # also: lint=accumulate
run.finish()
