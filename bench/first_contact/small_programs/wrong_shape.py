import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(4000, 30).cuda()
age = torch.rand(4000).cuda()
model = nn.Sequential(nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    prediction = model(x)
    error = prediction - age
    loss = error.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("finished")
