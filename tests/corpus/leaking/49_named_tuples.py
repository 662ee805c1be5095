from collections import namedtuple

import torch
from torch import nn

StepResult = namedtuple("StepResult", "step loss accuracy")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(nn.Linear(9, 18), nn.Tanh(), nn.Linear(18, 4)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def one_step(number):
    x = torch.randn(24, 9, device=device)
    y = torch.randint(0, 4, (24,), device=device)
    logits = net(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    accuracy = (logits.argmax(1) == y).float().mean().item()
    return StepResult(number, loss, accuracy)


results = []
for number in range(25):
    results += [one_step(number)]  # leak: holder=results kind=graph
print(max(r.accuracy for r in results))
