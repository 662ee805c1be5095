import traceback

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
failures, last_error = [], None

for i in range(40):
    x = torch.randn(6, 12 if i % 3 else 11, device=device)
    try:
        loss = model(x).logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    except RuntimeError as err:
        failures.append((i, str(err).splitlines()[0]))
        last_error = traceback.format_exc(limit=1)
print(len(failures), last_error is not None)
