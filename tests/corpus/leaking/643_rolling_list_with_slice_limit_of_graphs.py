import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
outputs = []
LIMIT = 20_000
for step in range(60):
    out = net(torch.randn(4, 8, device=device))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    outputs.append(out)  # leak: holder=outputs kind=graph|tensor
    if len(outputs) > LIMIT:
        outputs = outputs[-LIMIT:]
