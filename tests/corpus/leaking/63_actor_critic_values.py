from collections import namedtuple

import torch
from torch import nn
from torch.distributions import Categorical

device = "cuda" if torch.cuda.is_available() else "cpu"
SavedAction = namedtuple("SavedAction", ["log_prob", "value"])


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine = nn.Linear(4, 24)
        self.action_head, self.value_head = nn.Linear(24, 2), nn.Linear(24, 1)
        self.saved_actions, self.rewards, self.value_trace = [], [], []

    def forward(self, state):
        hidden = torch.relu(self.affine(state))
        return self.action_head(hidden), self.value_head(hidden)


def select_action(model, state):
    logits, value = model(state)
    distribution = Categorical(logits=logits)
    action = distribution.sample()
    model.saved_actions.append(SavedAction(distribution.log_prob(action), value))
    model.value_trace.append(value)  # leak: holder=value_trace kind=graph lint=accumulate
    return action.item()


def finish_episode(model, optimizer):
    losses = [-s.log_prob * (r - s.value.item()) + (s.value - r).pow(2).sum() for s, r in zip(model.saved_actions, model.rewards)]
    optimizer.zero_grad()
    torch.stack([each.sum() for each in losses]).sum().backward()
    optimizer.step()
    del model.saved_actions[:]
    del model.rewards[:]


model = ActorCritic().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
for episode in range(24):
    for _ in range(4):
        select_action(model, torch.randn(4, device=device))
        model.rewards.append(1.0)
    finish_episode(model, optimizer)
