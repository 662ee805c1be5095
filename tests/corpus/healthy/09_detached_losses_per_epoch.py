import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(20, 5).to(device)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(4):
    epoch_losses = []
    for i in range(15):
        x = torch.randn(10, 20, device=device)
        loss = nn.functional.cross_entropy(model(x), torch.randint(0, 5, (10,), device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_losses.append(loss.detach())
    print(epoch, torch.stack(epoch_losses).mean().item())
