import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=128)
args = parser.parse_args()
torch.manual_seed(0)
data = TensorDataset(torch.randn(2048, 1, 24, 24), torch.randint(0, 10, (2048,)))
loader = DataLoader(data, batch_size=args.batch_size)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6400, 10)
)
model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def validate():
    model.eval()
    total = 0
    for x, y in loader:
        total += nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    return total / len(loader)


for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    optimizer.step()
print(f"{float(validate()):.3f}")
