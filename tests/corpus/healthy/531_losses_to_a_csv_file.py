import csv
import os
import tempfile

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
path = os.path.join(tempfile.mkdtemp(), "log.csv")
model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 7)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

with open(path, "w", newline="") as file:
    writer = csv.DictWriter(file, fieldnames=["step", "loss", "lr"])
    writer.writeheader()
    for step in range(30):
        x = torch.randn(6, 7, device=device)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.writerow({"step": step, "loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]})
os.remove(path)
