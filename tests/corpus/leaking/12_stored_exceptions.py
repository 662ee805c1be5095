import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
errors = []


def step(batch):
    prediction = model(batch)
    loss = prediction.square().mean()
    if not torch.isfinite(loss) or loss.item() >= 0:
        raise ValueError("suspicious batch")
    loss.backward()


for _ in range(16):
    batch = torch.randn(16, 32, device=device)
    try:
        step(batch)
    except ValueError as error:
        errors.append(error)  # leak: holder=errors kind=graph lint=stored-exception
    optimizer.step()
print(len(errors), "bad batches")
