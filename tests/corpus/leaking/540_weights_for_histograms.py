import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(5, 11), nn.Sigmoid(), nn.Linear(11, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
weight_log = {name: [] for name, _ in model.named_parameters()}

for step in range(22):
    x = torch.rand(20, 5, device=device)
    y = (x.sum(1) > 2.5).long()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for name, param in model.named_parameters():
        weight_log[name].append(param.clone())  # leak: holder=weight_log kind=graph lint=accumulate

for name, values in weight_log.items():
    print(name, "from", values[0].std().item(), "to", values[-1].std().item())
