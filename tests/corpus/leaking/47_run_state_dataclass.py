from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class RunState:
    step: int = 0
    logits: list = field(default_factory=list)


def distil(teacher, student, steps, device):
    state = RunState()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    while state.step < steps:
        images = torch.randn(16, 20, device=device)
        with torch.no_grad():
            wanted = teacher(images).softmax(-1)
        given = student(images)
        divergence = nn.functional.kl_div(given.log_softmax(-1), wanted, reduction="batchmean")
        optimizer.zero_grad(set_to_none=True)
        divergence.backward()
        optimizer.step()
        state.step += 1
        state.logits.append(given)  # leak: holder=logits kind=graph lint=accumulate
    return state


device = "cuda" if torch.cuda.is_available() else "cpu"
teacher = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 6)).to(device).eval()
student = nn.Linear(20, 6).to(device)
print(distil(teacher, student, 24, device).step)
