import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MagnitudePruner:
    def __init__(self, layer, final_sparsity=0.8, steps=26):
        self.layer, self.final, self.steps = layer, final_sparsity, steps
        self.mask = torch.ones_like(layer.weight, requires_grad=False)
        self.mask_history = []

    @torch.no_grad()
    def step(self, t):
        sparsity = self.final * (1 - (1 - t / self.steps) ** 3)
        k = int(sparsity * self.layer.weight.numel())
        if k:
            threshold = self.layer.weight.abs().flatten().kthvalue(k).values
            self.mask = (self.layer.weight.abs() > threshold).float()
        self.layer.weight.mul_(self.mask)
        self.mask_history.append(self.mask.clone())  # leak: holder=mask_history|pruner kind=tensor


layer = nn.Linear(16, 16).to(device)
pruner = MagnitudePruner(layer)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for t in range(26):
    x = torch.randn(12, 16, device=device)
    loss = (layer(x) - x.roll(1, dims=1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pruner.step(t)
print(pruner.mask.mean().item())
