import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def training_steps(model, batches, lr=0.01):
    """Yields after every update, so that the caller decides what to print."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step, (x, y) in enumerate(batches):
        loss = nn.functional.huber_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


def batches(n=26):
    for _ in range(n):
        x = torch.rand(8, 5, device=device)
        yield x, x.prod(dim=1, keepdim=True)


net = nn.Sequential(nn.Linear(5, 15), nn.Softplus(), nn.Linear(15, 1)).to(device)
curve = []
for step, loss in training_steps(net, batches()):
    curve.append((step, loss))  # leak: holder=curve kind=graph lint=accumulate
    if step % 10 == 0:
        print(step, float(loss))
