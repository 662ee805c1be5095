import copy
import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class League:
    def __init__(self, first):
        self.members = [first]

    def add(self, player):
        self.members.append(copy.deepcopy(player).requires_grad_(False))  # leak: holder=members kind=tensor

    def opponent(self):
        return random.choice(self.members)


player = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
league = League(copy.deepcopy(player))
optimizer = torch.optim.Adam(player.parameters(), lr=1e-2)
for game in range(20):
    board = torch.randn(10, 6, device=device)
    with torch.no_grad():
        rival = league.opponent()(board)
    loss = torch.sigmoid(rival - player(board)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    league.add(player)
