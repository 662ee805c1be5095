import itertools

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def stream(length):
    for _ in range(length):
        yield torch.randn(12, 8, device=device)


def main():
    model = nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training, inspection = itertools.tee(stream(24))  # leak: holder=inspection kind=tensor
    for x in training:
        loss = model(x).logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("first batch", next(inspection).mean().item())


main()
