import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Signal:
    def __init__(self):
        self.handlers = []

    def connect(self, handler):
        self.handlers.append(handler)  # leak: holder=handlers kind=tensor


epoch_end = Signal()


class Step:
    """A training step that returns the mean of its batch at the end of the epoch."""

    def __init__(self, inputs):
        self.inputs = inputs
        epoch_end.connect(self.finish)  # also:

    def finish(self):
        return self.inputs.mean().item()


model = nn.Linear(9, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(24):
    step = Step(torch.randn(6, 9, device=device))
    loss = model(step.inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sum(handler() for handler in epoch_end.handlers))
