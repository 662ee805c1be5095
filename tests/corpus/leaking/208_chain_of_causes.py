import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class BatchFailed(Exception):
    pass


model = nn.Linear(12, 12).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def attempt(x):
    hidden = model(x).relu()
    raise ValueError(f"{hidden.shape} is not what was expected")


last_failure = None
for step in range(18):
    x = torch.randn(6, 12, device=device)
    try:
        attempt(x)
    except ValueError as error:
        failure = BatchFailed(f"step {step}")
        failure.__cause__ = error  # also: lint=stored-exception
        failure.previous = last_failure  # also:
        last_failure = failure  # leak: holder=last_failure|failure kind=graph
    optimizer.step()
