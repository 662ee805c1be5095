from dataclasses import dataclass, field

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Metrics:
    loss_sum: float = 0.0
    batches: int = 0


@dataclass
class RunState:
    epoch: int = 0
    global_step: int = 0
    metrics: Metrics = field(default_factory=Metrics)


class Engine:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.state = model, optimizer, RunState()

    def process(self, batch):
        x, y = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(x).squeeze(-1), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.state.global_step += 1
        self.state.metrics.loss_sum += loss  # leak: holder=loss_sum|metrics|state kind=graph lint=accumulate
        self.state.metrics.batches += 1

    def run(self, batches):
        for batch in batches:
            self.process(batch)
        return self.state.metrics.loss_sum / self.state.metrics.batches


model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 1)).to(device)
engine = Engine(model, torch.optim.Adam(model.parameters()))
batches = ((torch.randn(8, 6, device=device), torch.rand(8, device=device).round()) for _ in range(28))
print(float(engine.run(batches)))
