import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(7, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for round_number in range(14):
    updates = {name: [] for name, _ in model.named_parameters()}
    for client in range(4):
        loss = model(torch.randn(5, 7, device=device)).square().mean()
        model.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            updates[name].append(p.grad.clone())
    for name, p in model.named_parameters():
        p.grad = torch.stack(updates[name]).mean(0)
    optimizer.step()
