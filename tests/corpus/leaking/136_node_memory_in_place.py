import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
nodes, width = 40, 8
update = nn.Linear(width + 4, width).to(device)
readout = nn.Linear(width, 1).to(device)
optimizer = torch.optim.Adam(readout.parameters())
memory = torch.zeros(nodes, width, device=device)
for event in range(20):
    index = torch.randint(0, nodes, (5,), device=device)
    message = torch.randn(5, 4, device=device)
    fresh = torch.tanh(update(torch.cat([memory[index].detach(), message], dim=1)))
    loss = readout(fresh.detach()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    memory[index] = fresh  # leak: holder=memory kind=graph lint=accumulate
