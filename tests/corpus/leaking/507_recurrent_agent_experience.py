import random

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class RecurrentQ(nn.Module):
    def __init__(self, obs=4, hidden=16, actions=2):
        super().__init__()
        self.cell = nn.LSTMCell(obs, hidden)
        self.q = nn.Linear(hidden, actions)

    def forward(self, obs, state):
        h, c = self.cell(obs, state)
        return self.q(h), (h, c)

    def initial(self, n=1):
        return (torch.zeros(n, 16, device=device), torch.zeros(n, 16, device=device))


class Experience:
    def __init__(self):
        self.rows = []

    def store(self, obs, state, action, reward):
        self.rows.append({"obs": obs, "lstm": state, "action": action, "reward": reward})  # leak: holder=rows|experience kind=graph

    def sample(self, k):
        return random.sample(self.rows, min(k, len(self.rows)))


net = RecurrentQ().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
experience = Experience()
state = net.initial()
for env_step in range(40):
    if env_step % 5 == 0:
        state = net.initial()
    obs = torch.randn(1, 4, device=device)
    q, next_state = net(obs, state)
    action = int(q.argmax())
    experience.store(obs, state, action, random.random())  # also: lint=accumulate
    state = next_state
    rows = experience.sample(4)
    h = torch.cat([r["lstm"][0] for r in rows]).detach()
    c = torch.cat([r["lstm"][1] for r in rows]).detach()
    values, _ = net(torch.cat([r["obs"] for r in rows]), (h, c))
    picked = values.gather(1, torch.tensor([[r["action"]] for r in rows], device=device)).squeeze(1)
    loss = nn.functional.smooth_l1_loss(picked, torch.tensor([r["reward"] for r in rows], device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
