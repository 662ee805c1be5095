import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
data = TensorDataset(torch.randn(200, 10), torch.randint(0, 2, (200,)))
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
examples = []
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        logits = model(x.to(device))
        loss = nn.functional.cross_entropy(logits, y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if len(examples) < 6:
            examples.append((x, logits.detach().cpu()))
print(len(examples))
