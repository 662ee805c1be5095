from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
actor = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.Adam(actor.parameters())
buffer = deque(maxlen=50_000)
state = torch.randn(1, 4, device=device)
for step in range(50):
    logits = actor(state)
    action = logits.argmax(-1).item()
    following = torch.randn(1, 4, device=device)
    buffer.append((state, logits.log_softmax(-1), action, following))  # leak: holder=buffer kind=graph
    chosen = torch.cat([buffer[i][0] for i in torch.randint(0, len(buffer), (8,)).tolist()])
    loss = actor(chosen).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state = following
