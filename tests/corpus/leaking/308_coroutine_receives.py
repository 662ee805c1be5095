import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def averager():
    received = []
    average = None
    while True:
        value = yield average
        received.append(value)  # leak: holder=received kind=graph
        average = sum(v.item() for v in received[-10:]) / len(received[-10:])


smooth = averager()
next(smooth)
model = nn.Linear(10, 1).to(device)
optimizer = torch.optim.RMSprop(model.parameters())
for step in range(22):
    loss = model(torch.randn(4, 10, device=device)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth.send(loss)  # also: lint=accumulate
