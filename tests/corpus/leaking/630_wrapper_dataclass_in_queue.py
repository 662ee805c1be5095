from dataclasses import dataclass, field
from queue import Queue

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Job:
    step: int
    payload: torch.Tensor


@dataclass
class Board:
    jobs: Queue = field(default_factory=Queue)

    def submit(self, step, payload):
        self.jobs.put_nowait(Job(step, payload))  # leak: holder=jobs kind=tensor


def main():
    board = Board()
    model = nn.Linear(8, 8).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        x = torch.randn(8, 8, device=device)
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        board.submit(step, x)


main()
