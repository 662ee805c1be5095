import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
student = nn.Linear(10, 10).to(device)
teacher_weights = [p.clone().detach() for p in student.parameters()]
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(20):
    x = torch.randn(7, 10, device=device)
    loss = (student(x) - x.flip(1)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    teacher_weights = [0.99 * t + 0.01 * p for t, p in zip(teacher_weights, student.parameters())]  # leak: holder=teacher_weights kind=graph lint=accumulate
