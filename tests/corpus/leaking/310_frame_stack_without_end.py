from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class FrameStack:
    def __init__(self, k=4):
        self.k = k
        self.frames = deque()

    def observe(self, frame):
        self.frames.append(frame)  # leak: holder=frames kind=tensor
        last = list(self.frames)[-self.k :]
        return torch.stack(last).mean(0)


stack = FrameStack()
q_net = nn.Linear(16, 3).to(device)
optimizer = torch.optim.Adam(q_net.parameters())
for step in range(26):
    observation = stack.observe(torch.rand(16, device=device))
    loss = (q_net(observation) - 1.0).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
