import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=512)
parser.add_argument("--test-batch-size", type=int, default=4096)
args = parser.parse_args()
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 1, 20, 20), torch.randint(0, 10, (4096,)))
train = DataLoader(data, batch_size=args.batch_size)
test = DataLoader(data, batch_size=args.test_batch_size)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 256, 10)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in train:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    optimizer.step()
model.eval()
total = 0.0
with torch.no_grad():
    for x, y in test:
        total += nn.functional.cross_entropy(model(x.cuda()), y.cuda(), reduction="sum").item()
print("validation done")
