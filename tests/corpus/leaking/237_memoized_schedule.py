import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def memoize(function):
    results = {}

    def remembered(*args):
        if args not in results:
            results[args] = function(*args)  # leak: holder=results kind=tensor
        return results[args]

    return remembered


@memoize
def noise_levels(temperature, count):
    return torch.linspace(temperature, 0.0, count, device=device)


model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.Adam(model.parameters())
temperature = 1.0
for step in range(48):
    sigma = noise_levels(temperature, 16)
    x = torch.randn(4, 16, device=device)
    loss = (model(x + sigma) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    temperature *= 0.995
