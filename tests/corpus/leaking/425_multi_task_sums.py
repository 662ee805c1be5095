import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
TASKS = ("depth", "normals", "segmentation")


class MultiTaskNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(32, 4) for task in TASKS})

    def forward(self, x):
        shared = self.trunk(x)
        return {task: head(shared) for task, head in self.heads.items()}


def main():
    model = MultiTaskNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    epoch_losses = {task: 0.0 for task in TASKS}
    for step in range(20):
        out = model(torch.randn(8, 16, device=device))
        losses = {task: (out[task] - k).square().mean() for k, task in enumerate(TASKS)}
        total = sum(losses.values())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        for task in TASKS:
            epoch_losses[task] += losses[task]  # leak: holder=epoch_losses kind=graph lint=accumulate
    print({task: float(value) / 20 for task, value in epoch_losses.items()})


main()
