import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.Adam(model.parameters())
history = []
if device == "cuda":
    for step in range(60):
        loss = model(torch.randn(32, 64, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.detach().cpu())
    print(torch.stack(history).mean())
