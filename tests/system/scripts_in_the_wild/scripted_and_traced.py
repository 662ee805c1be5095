"""A model on the device with torch.jit.script and torch.jit.trace, saved, loaded and trained, and a step with
torch.compile."""

import os
import tempfile

import torch
import torch.nn as nn

torch.manual_seed(0)
device = "cuda"


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.a(x).relu()
        return self.b(x).tanh()


model = Gate().to(device)
x = torch.randn(4, 8, device=device)
scripted = torch.jit.script(model)
traced = torch.jit.trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(device), x)
optimizer = torch.optim.SGD([*scripted.parameters(), *traced.parameters()], lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = (traced(scripted(x)) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item(), loss.device.type == x.device.type)
path = os.path.join(tempfile.mkdtemp(), "scripted.pt")
torch.jit.save(scripted, path)
loaded = torch.jit.load(path, map_location=device)
print(torch.equal(loaded(x), scripted(x)), next(loaded.parameters()).device == x.device)


@torch.jit.script
def fused(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = x + bias
    return y * 0.5 * (1.0 + torch.erf(y / 1.41421))


print(fused(x, x[0]).sum().item())


@torch.compile
def compiled(x, y):
    return torch.sin(x) + torch.cos(y)


print(compiled(x, x).sum().item())
step = torch.compile(model, mode="reduce-overhead", fullgraph=False)
print(step(x).sum().item())
