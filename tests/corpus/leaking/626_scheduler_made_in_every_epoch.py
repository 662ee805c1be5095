import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(10, 10).to(device)
runs = {}
for run in range(30):
    member = nn.Linear(10, 10).to(device)
    optimizer = torch.optim.Adam(member.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(3):
        loss = member(model(torch.randn(8, 10, device=device)).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    runs[run] = scheduler  # leak: holder=runs kind=tensor
