"""Trains with a batch that is too large, so memory runs out in the forward pass."""

import torch
from torch import nn

LIMIT = 2 << 30
torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.get_device_properties(0).total_memory)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()  # <- runs out
        return x


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for samples in (1024, 1024, 16384):
    x = torch.randn(samples, 2048, device="cuda")
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
