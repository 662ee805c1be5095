import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Memory(nn.Module):
    def __init__(self, width=8, slots=12):
        super().__init__()
        self.slots = slots
        self.write, self.read = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, memory):
        slot = torch.tanh(self.write(x))
        memory = slot.detach() if memory is None else torch.cat([memory, slot.detach()])[-self.slots :]
        return self.read(torch.softmax(slot @ memory.T, dim=-1) @ memory), memory


model = Memory().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
memory = None
for t in range(30):
    x = torch.randn(2, 8, device=device)
    output, memory = model(x, memory)
    loss = (output - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
