import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Prefetch:
    """Prefetches three batches."""

    def __init__(self, source, ahead=3):
        self.source, self.ahead, self.ready = iter(source), ahead, []

    def __iter__(self):
        return self

    def __next__(self):
        while len(self.ready) < self.ahead:
            try:
                self.ready.append(next(self.source).to(device))
            except StopIteration:
                break
        if not self.ready:
            raise StopIteration
        return self.ready.pop(0)


model = nn.Linear(10, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in Prefetch(torch.randn(6, 10) for _ in range(28)):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
