import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mass = torch.zeros(4, device=device)
for step in range(20):
    x, y = torch.randn(12, 5, device=device), torch.randint(0, 4, (12,), device=device)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mass.index_add_(0, y, logits.softmax(-1).gather(1, y[:, None]).squeeze(1))  # leak: holder=mass kind=graph lint=accumulate
print((mass / mass.sum()).tolist())
