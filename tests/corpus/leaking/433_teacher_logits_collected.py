import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def distill(student, teacher, loader, temperature=3.0):
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    teacher_outputs = []
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        t_logits = teacher(x)  # lint: no-grad
        teacher_outputs.append(t_logits)  # leak: holder=teacher_outputs kind=graph lint=accumulate
        s_logits = student(x)
        kd = F.kl_div(
            F.log_softmax(s_logits / temperature, dim=1),
            F.softmax(t_logits.detach() / temperature, dim=1),
            reduction="batchmean",
        )
        loss = 0.5 * kd * temperature**2 + 0.5 * F.cross_entropy(s_logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return teacher_outputs


teacher = nn.Sequential(nn.Linear(15, 60), nn.ReLU(), nn.Linear(60, 5)).to(device)
student = nn.Sequential(nn.Linear(15, 15), nn.ReLU(), nn.Linear(15, 5)).to(device)
loader = [(torch.randn(8, 15), torch.randint(0, 5, (8,))) for _ in range(24)]
print(len(distill(student, teacher, loader)))
