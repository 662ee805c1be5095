import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
shift = nn.Parameter(torch.zeros(10, device=device))
pool = torch.empty(0, 10, device=device)
for step in range(20):
    x, y = torch.randn(4, 10, device=device), torch.randint(0, 2, (4,), device=device)
    adversarial = x + 0.1 * torch.tanh(shift)
    loss = nn.functional.cross_entropy(model(adversarial), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pool = torch.cat([pool, adversarial])  # leak: holder=pool kind=graph lint=accumulate
