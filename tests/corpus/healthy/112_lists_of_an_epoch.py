import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
data = TensorDataset(torch.randn(96, 10), torch.randint(0, 2, (96,)))


def run_epoch(model, optimizer):
    scores, targets = [], []
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        logits = model(x.to(device)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y.float().to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scores.append(torch.sigmoid(logits).detach().cpu())
        targets.append(y)
    return ((torch.cat(scores) > 0.5) == torch.cat(targets)).float().mean().item()


model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
print([run_epoch(model, optimizer) for _ in range(6)])
