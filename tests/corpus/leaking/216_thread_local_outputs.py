import threading

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
context = threading.local()


def remember(tensor):
    if not hasattr(context, "outputs"):
        context.outputs = []
    context.outputs.append(tensor)  # leak: holder=outputs|context kind=graph


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(9, 12), nn.Linear(12, 2)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        remember(hidden)  # also: lint=accumulate
        return self.second(hidden)


net = Net().to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(20):
    loss = net(torch.randn(6, 9, device=device)).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
