"""Weights and gradients do not fit together, so memory runs out in the backward pass."""

import torch
from torch import nn

LIMIT = 1 << 30
torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.get_device_properties(0).total_memory)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(4096, 4096) for _ in range(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.wide:
            x = layer(x).relu()  # <- runs out
        return x


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss = model(torch.randn(64, 4096, device="cuda")).mean()
loss.backward()
optimizer.step()
