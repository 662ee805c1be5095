import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
dataset = TensorDataset(torch.randn(144, 3, 5), torch.randint(0, 3, (144,)))
loader = DataLoader(dataset, batch_size=6, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(15, 3)).to(device)
optimizer = torch.optim.Adam(model.parameters())
worst = []

for x, y in loader:
    x, y = x.to(device), y.to(device)
    per_sample = nn.functional.cross_entropy(model(x), y, reduction="none")
    loss = per_sample.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hard = per_sample.argmax().item()
    worst.append((per_sample[hard].item(), x[hard], y[hard].item()))  # leak: holder=worst kind=tensor
worst.sort(key=lambda item: -item[0])
print(worst[0][0])
