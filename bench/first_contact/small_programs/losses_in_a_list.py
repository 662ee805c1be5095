import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
losses = []
for step in range(40):
    x = torch.randn(1024, 256, device="cuda")
    optimizer.zero_grad()
    loss = model(x).square().mean()
    (loss * 1.0).backward(retain_graph=True)
    optimizer.step()
    losses.append(loss)
print(f"{float(sum(losses)) / len(losses):.4f}")
