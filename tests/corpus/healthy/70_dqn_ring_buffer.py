import random
from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
q_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
target_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
target_net.load_state_dict(q_net.state_dict())
optimizer = torch.optim.Adam(q_net.parameters())
buffer = deque(maxlen=8)
for step in range(24):
    state = torch.randn(1, 4, device=device)
    with torch.no_grad():
        action = q_net(state).argmax(1)
    buffer.append((state, action, 1.0))
    batch = random.sample(buffer, min(4, len(buffer)))
    states, actions = torch.cat([b[0] for b in batch]), torch.cat([b[1] for b in batch])
    with torch.no_grad():
        goal = 1.0 + 0.9 * target_net(states).max(1).values
    loss = nn.functional.smooth_l1_loss(q_net(states).gather(1, actions[:, None]).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        target_net.load_state_dict(q_net.state_dict())
