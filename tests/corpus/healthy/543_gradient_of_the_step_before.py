import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.Linear(18, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
previous, similarities = None, []
for step in range(32):
    x, y = torch.randn(10, 9, device=device), torch.randint(0, 2, (10,), device=device)
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    current = torch.cat([p.grad.flatten() for p in model.parameters()])
    if previous is not None:
        similarities.append(F.cosine_similarity(current, previous, dim=0).item())
    previous = current
    optimizer.step()
print(sum(similarities) / len(similarities))
