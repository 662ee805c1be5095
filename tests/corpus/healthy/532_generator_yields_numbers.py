import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        x, y = torch.randn(8, 5, device=device), torch.randint(0, 3, (8,), device=device)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield {"step": step, "loss": loss.item(), "accuracy": (logits.argmax(1) == y).float().mean().item()}


rows = list(train(nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 3)).to(device), 32))
print(rows[-1])
