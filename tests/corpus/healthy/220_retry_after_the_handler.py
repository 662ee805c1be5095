import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


class TooLarge(RuntimeError):
    pass


def forward_backward(x):
    loss = model(x).square().mean()
    if len(x) > 12:
        raise TooLarge(f"batch of {len(x)}")
    loss.backward()
    return loss.item()


failures = 0
for step in range(28):
    x = torch.randn(8 + (step % 3) * 4, 10, device=device)
    optimizer.zero_grad()
    too_large = False
    try:
        forward_backward(x)
    except TooLarge as error:
        failures += 1
        message = str(error)
        too_large = True
    if too_large:
        for part in x.chunk(2):
            forward_backward(part)
    optimizer.step()
