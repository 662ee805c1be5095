from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class History:
    loss: list = field(default_factory=list)
    accuracy: list = field(default_factory=list)

    def record(self, loss, accuracy):
        self.loss.append(loss)  # leak: holder=loss|history kind=graph
        self.accuracy.append(accuracy)


@dataclass
class Config:
    hidden: int = 32
    classes: int = 4
    steps: int = 25
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


def run(cfg: Config) -> History:
    net = nn.Sequential(nn.Linear(10, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.classes)).to(cfg.device)
    optim = torch.optim.SGD(net.parameters(), lr=0.05)
    history = History()
    for _ in range(cfg.steps):
        x = torch.randn(12, 10, device=cfg.device)
        y = torch.randint(cfg.classes, (12,), device=cfg.device)
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        optim.zero_grad()
        loss.backward()
        optim.step()
        history.record(loss, (logits.argmax(-1) == y).float().mean().item())  # also: lint=accumulate
    return history


print(len(run(Config()).loss))
