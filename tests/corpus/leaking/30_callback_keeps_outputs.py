import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Callback:
    def on_batch_end(self, outputs):
        raise NotImplementedError


class HistogramCallback(Callback):
    def __init__(self):
        self.batches = []

    def on_batch_end(self, outputs):
        self.batches.append(outputs)  # leak: holder=batches kind=graph lint=accumulate


def fit(model, optimizer, callbacks, steps=20):
    for _ in range(steps):
        x = torch.randn(8, 14, device=device)
        y = torch.randint(0, 3, (8,), device=device)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for callback in callbacks:
            callback.on_batch_end({"logits": logits, "loss": loss})  # also:


model = nn.Sequential(nn.Linear(14, 28), nn.ReLU(), nn.Linear(28, 3)).to(device)
fit(model, torch.optim.Adam(model.parameters()), [HistogramCallback()])
