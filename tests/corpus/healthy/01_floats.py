import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses, accuracies = [], []
total = 0.0
for step in range(40):
    x = torch.randn(16, 20, device=device)
    y = torch.randint(0, 2, (16,), device=device)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
    losses.append(loss.item())
    accuracies.append({"step": step, "accuracy": (logits.argmax(1) == y).float().mean().item()})
print(total / len(losses))
