import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def snapshot(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def train(steps):
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    undo, previous = None, float("inf")
    for _ in range(steps):
        undo = (snapshot(model), undo)  # leak: holder=undo kind=tensor
        loss = model(torch.randn(12, 8, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() > 10 * previous:
            with torch.no_grad():
                for name, value in model.named_parameters():
                    value.copy_(undo[0][name])
        previous = loss.item()
    return model


train(22)
