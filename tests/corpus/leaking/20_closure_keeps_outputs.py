import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def make_logger():
    kept = []

    def log(name, tensor):
        kept.append((name, tensor))  # leak: holder=kept kind=graph
        if len(kept) % 100 == 0:
            print(len(kept))

    return log


log = make_logger()
model = nn.Sequential(nn.Linear(9, 27), nn.Sigmoid(), nn.Linear(27, 1)).to(device)
optimizer = torch.optim.RMSprop(model.parameters())
for step in range(20):
    x = torch.rand(30, 9, device=device)
    loss = (model(x) - x.prod(1, keepdim=True)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log("loss", loss)  # also: lint=accumulate
