import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Writer:
    def __init__(self):
        self.events = {}

    def add_scalar(self, tag, value, step):
        self.events.setdefault(tag, []).append((step, value))  # leak: holder=events kind=graph

    def close(self):
        for tag, points in self.events.items():
            print(tag, [(step, float(value)) for step, value in points])


class Trainer:
    def __init__(self, model, writer):
        self.model, self.writer = model, writer
        self.optimizer = torch.optim.AdamW(model.parameters())

    def step(self, index, x):
        loss = self.model(x).relu().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.writer.add_scalar("train/loss", loss, index)  # also: lint=accumulate


trainer = Trainer(nn.Linear(13, 4).to(device), Writer())
for index in range(22):
    trainer.step(index, torch.randn(5, 13, device=device))
trainer.writer.close()
