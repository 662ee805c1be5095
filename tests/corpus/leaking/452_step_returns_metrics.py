import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def train_step(model, optimizer, batch):
    x, y = batch
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss, "accuracy": (logits.argmax(1) == y).float().mean().item()}


def fit(model, optimizer, batches):
    epoch_metrics = []
    for batch in batches:
        metrics = train_step(model, optimizer, batch)
        epoch_metrics.append(metrics)  # leak: holder=epoch_metrics kind=graph lint=accumulate
    return {key: sum(float(m[key]) for m in epoch_metrics) / len(epoch_metrics) for key in epoch_metrics[0]}


def batches(n):
    for _ in range(n):
        yield torch.randn(9, 6, device=device), torch.randint(0, 3, (9,), device=device)


net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
print(fit(net, torch.optim.Adam(net.parameters()), batches(26)))
