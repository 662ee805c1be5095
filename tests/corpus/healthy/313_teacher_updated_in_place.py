import copy

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MeanTeacher(nn.Module):
    def __init__(self, student):
        super().__init__()
        self.student = student
        self.teacher = copy.deepcopy(student).requires_grad_(False)
        self.register_buffer("center", torch.zeros(1, 4))

    @torch.no_grad()
    def update(self, outputs):
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            t.mul_(0.99).add_(s, alpha=0.01)
        self.center = self.center * 0.9 + outputs.mean(0, keepdim=True) * 0.1


pair = MeanTeacher(nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 4))).to(device)
optimizer = torch.optim.SGD(pair.student.parameters(), lr=0.05)
for step in range(24):
    x = torch.randn(8, 6, device=device)
    outputs = pair.student(x)
    target = (pair.teacher(x) - pair.center).softmax(-1)
    loss = -(target * outputs.log_softmax(-1)).sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pair.update(outputs)
