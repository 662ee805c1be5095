import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Run:
    def __init__(self):
        self.rows = []

    def log(self, payload):
        self.rows.append({key: value.item() if isinstance(value, torch.Tensor) else value for key, value in payload.items()})


run = Run()
model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(30):
    x = torch.randn(16, 5, device=device)
    loss = (model(x) - x.prod(1, keepdim=True)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log({"train/loss": loss, "step": step, "lr": optimizer.param_groups[0]["lr"]})
print(len(run.rows))
