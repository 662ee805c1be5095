from dataclasses import dataclass, field

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Datastore:
    keys: list = field(default_factory=list)
    values: list = field(default_factory=list)

    def add(self, key, value):
        self.keys.append(key.detach())  # leak: holder=keys kind=tensor
        self.values.append(int(value))

    def nearest(self, query):
        distances = torch.cdist(query[None], torch.stack(self.keys))[0]
        return self.values[int(distances.argmin())]


store = Datastore()
encoder, head = nn.Linear(9, 6).to(device), nn.Linear(6, 20).to(device)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()])
for step in range(26):
    token = torch.randint(0, 20, (1,), device=device)
    hidden = torch.tanh(encoder(torch.randn(1, 9, device=device)))
    loss = nn.functional.cross_entropy(head(hidden), token)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    store.add(hidden[0], token)
