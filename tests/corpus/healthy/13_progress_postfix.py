import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Progress:
    def __init__(self, iterable):
        self.iterable, self.postfix = iterable, {}

    def __iter__(self):
        return iter(self.iterable)

    def set_postfix(self, **values):
        self.postfix = values


model = nn.Linear(12, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
bar = Progress(range(40))
for step in bar:
    x = torch.randn(8, 12, device=device)
    loss = nn.functional.cross_entropy(model(x), torch.randint(0, 2, (8,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bar.set_postfix(loss=loss, lr=0.1)
