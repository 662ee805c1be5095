import weakref

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Frame:
    def __init__(self, pixels):
        self.pixels = pixels


statistics = weakref.WeakKeyDictionary()


def normalised(frame):
    if frame not in statistics:
        statistics[frame] = (frame.pixels.mean(), frame.pixels.std())
    mean, std = statistics[frame]
    return (frame.pixels - mean) / std


model = nn.Linear(12, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(26):
    frame = Frame(torch.rand(6, 12, device=device))
    loss = model(normalised(frame)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
