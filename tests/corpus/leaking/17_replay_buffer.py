import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
q_network = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-3)
memory = []

state = torch.randn(4, device=device)
for step in range(30):
    with torch.no_grad():
        action = q_network(state).argmax()
    next_state = torch.randn(4, device=device)
    reward = torch.rand((), device=device)
    memory.append((state, action, reward, next_state))  # leak: holder=memory kind=tensor
    state = next_state
    batch = random.choices(memory, k=8)
    states = torch.stack([b[0] for b in batch])
    actions = torch.stack([b[1] for b in batch])
    rewards = torch.stack([b[2] for b in batch])
    q = q_network(states).gather(1, actions[:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(q, rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
