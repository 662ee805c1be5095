import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList()

    def begin_stage(self):
        stage = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
        self.stages.append(stage)  # leak: holder=stages kind=tensor
        return stage


model = Growing()
for number in range(20):
    stage = model.begin_stage()
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    x = torch.randn(6, 8, device=device)
    loss = (stage(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
