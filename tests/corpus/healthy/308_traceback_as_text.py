import traceback

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(10, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
reports = []


def risky(x):
    output = model(x)
    if output.mean() > 0:
        raise ArithmeticError("mean above zero")
    return output


for step in range(28):
    x = torch.randn(6, 10, device=device)
    try:
        output = risky(x)
    except ArithmeticError as error:
        reports.append("".join(traceback.TracebackException.from_exception(error).format()))
        output = None
    if output is None:
        output = model(-x)
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
