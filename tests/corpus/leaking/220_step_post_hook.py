import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class WeightRecorder:
    def __init__(self, optimizer):
        self.frames = []
        optimizer.register_step_post_hook(self.after_step)

    def after_step(self, optimizer, args, kwargs):
        weights = [p.detach().cpu().clone() for group in optimizer.param_groups for p in group["params"]]
        self.frames.append(weights)  # leak: holder=frames kind=tensor


model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
recorder = WeightRecorder(optimizer)
for step in range(24):
    loss = model(torch.randn(8, 6, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
