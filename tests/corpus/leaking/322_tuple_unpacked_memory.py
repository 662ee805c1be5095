import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MemoryNetwork(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.write = nn.Linear(width, width)
        self.read = nn.Linear(width, width)

    def forward(self, x, memory):
        slot = torch.tanh(self.write(x))
        memory = slot if memory is None else torch.cat([memory, slot], dim=0)
        weights = torch.softmax(x @ memory.detach().T, dim=-1)
        return self.read(weights @ memory.detach()), memory


model = MemoryNetwork().to(device)
optimizer = torch.optim.SGD(model.read.parameters(), lr=0.05)
memory = None
for t in range(20):
    x = torch.randn(2, 10, device=device)
    output, memory = model(x, memory)  # leak: holder=memory kind=graph lint=hidden-state
    loss = (output - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
