from dataclasses import dataclass, field

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Session:
    user: int
    states: list = field(default_factory=list)


class Bot(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(12, 24)
        self.sessions = {}

    @torch.inference_mode()
    def forward(self, user, x):
        session = self.sessions.setdefault(user, Session(user))
        hidden = session.states[-1] if session.states else None
        session.states.append(self.cell(x, hidden))  # leak: holder=states|sessions kind=tensor
        return session.states[-1]


bot = Bot().to(device).eval()
for message in range(60):
    bot(message % 3, torch.randn(1, 12, device=device))
