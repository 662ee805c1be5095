import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Console:
    def __init__(self):
        self.lines = []

    def info(self, template, *values):
        self.lines.append(template % values)


console = Console()
model = nn.Sequential(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(32):
    x, y = torch.randn(9, 5, device=device), torch.randint(0, 2, (9,), device=device)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    console.info("step %d loss %.4f", step, loss)
print(console.lines[-1])
