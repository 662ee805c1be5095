import warnings

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Linear(10, 10).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)


class BadStep(UserWarning):
    def __init__(self, loss):
        super().__init__("loss is large")
        self.loss = loss


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for step in range(40):
        loss = net(torch.randn(8, 10, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warnings.warn(BadStep(loss))  # leak: holder=caught kind=graph|tensor
