import numpy as np
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = np.empty(0)
predictions = np.empty((0, 1))
for step in range(36):
    x = torch.rand(9, 3, device=device)
    prediction = model(x)
    loss = (prediction - x.norm(dim=1, keepdim=True)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses = np.append(losses, loss.detach().cpu().numpy())
    if step % 12 == 0:
        predictions = np.append(predictions, prediction.detach().cpu().numpy(), axis=0)
print(losses.mean(), predictions.shape)
