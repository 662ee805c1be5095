import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
curves = {"loss": [], "norm": [], "lr": []}
model = nn.Linear(15, 5).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for iteration in range(20):
    x = torch.randn(25, 15, device=device)
    loss = model(x).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    curves["loss"].append(loss)  # leak: holder=curves kind=graph lint=accumulate
    curves["norm"].append(norm)
    curves["lr"].append(optimizer.param_groups[0]["lr"])
