from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class FrameStack:
    def __init__(self, k=4):
        self.k, self.frames = k, deque([], maxlen=k)

    def reset(self, frame):
        for _ in range(self.k):
            self.frames.append(frame)

    def step(self, frame):
        self.frames.append(frame)
        return torch.cat(list(self.frames))


net = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 3)).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
stack = FrameStack()
for episode in range(4):
    stack.reset(torch.rand(1, 8, 8, device=device))
    for t in range(9):
        observation = stack.step(torch.rand(1, 8, 8, device=device))
        q = net(observation[None])
        loss = (q.max() - 1.0).pow(2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
