from collections import defaultdict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Trainer:
    def __init__(self, model, logging_steps=4):
        self.model, self.logging_steps = model, logging_steps
        self.optimizer = torch.optim.AdamW(model.parameters())
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.log_history = []

    def training_step(self, x, y):
        logits = self.model(x)
        loss = nn.functional.cross_entropy(logits, y)
        self._metrics["train"]["entropy"].append(torch.distributions.Categorical(logits=logits.detach()).entropy().mean())
        self._metrics["train"]["margin"].append(logits.detach().topk(2).values.diff().abs().mean())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def log(self, step):
        averaged = {key: torch.stack(values).mean().item() for key, values in self._metrics["train"].items()}
        self.log_history.append({"step": step, **averaged})
        self._metrics["train"].clear()

    def train(self, steps):
        for step in range(1, steps + 1):
            self.training_step(torch.randn(8, 6, device=device), torch.randint(0, 4, (8,), device=device))
            if step % self.logging_steps == 0:
                self.log(step)


trainer = Trainer(nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 4)).to(device))
trainer.train(40)
print(trainer.log_history[-1])
