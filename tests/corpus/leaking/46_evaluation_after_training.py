import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(480, 16), torch.randint(0, 2, (480,)))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=48):
    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()
outputs = []
for x, y in DataLoader(data, batch_size=12):
    outputs.append(model(x.to(device)))  # leak: holder=outputs kind=graph lint=accumulate,no-grad
print(torch.cat(outputs).shape)
