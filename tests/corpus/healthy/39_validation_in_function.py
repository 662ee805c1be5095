import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


@torch.inference_mode()
def validate(model, loader):
    model.eval()
    predicted, wanted = [], []
    for x, y in loader:
        predicted.append(model(x.to(device)).argmax(1))
        wanted.append(y.to(device))
    model.train()
    return (torch.cat(predicted) == torch.cat(wanted)).float().mean().item()


def batches(count):
    return DataLoader(TensorDataset(torch.randn(count, 5), torch.randint(0, 3, (count,))), batch_size=10)


model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 3)).to(device)
optimizer = torch.optim.NAdam(model.parameters())
best = 0.0
for epoch in range(3):
    for x, y in batches(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
    best = max(best, validate(model, batches(200)))
print(best)
