import copy

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
student = nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.Linear(18, 3)).to(device)
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
consistency_meter, n = 0.0, 0

for step in range(32):
    labelled, y = torch.randn(6, 9, device=device), torch.randint(0, 3, (6,), device=device)
    unlabelled = torch.randn(12, 9, device=device)
    with torch.no_grad():
        pseudo = teacher(unlabelled + 0.05 * torch.randn_like(unlabelled)).softmax(dim=1)
    consistency = F.mse_loss(student(unlabelled).softmax(dim=1), pseudo)
    loss = F.cross_entropy(student(labelled), y) + min(1.0, step / 10) * consistency
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    consistency_meter += consistency.item()
    n += 1
    with torch.no_grad():
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.lerp_(s, 0.01)
print(consistency_meter / n)
