from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(slots=True)
class Event:
    kind: str
    payload: Any


class Bus:
    def __init__(self):
        self.listeners, self.past = {}, []

    def on(self, kind, listener):
        self.listeners.setdefault(kind, []).append(listener)

    def emit(self, event):
        self.past.append(event)  # leak: holder=past kind=graph
        for listener in self.listeners.get(event.kind, ()):
            listener(event.payload)


bus = Bus()
bus.on("step", lambda payload: print(f"{payload['loss'].item():.3f}"))
model = nn.Linear(10, 1).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for _ in range(22):
    loss = model(torch.randn(8, 10, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bus.emit(Event("step", {"loss": loss}))  # also:
