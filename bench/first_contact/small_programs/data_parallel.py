import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=192)
args = parser.parse_args()
torch.manual_seed(0)
model = nn.Sequential(
    *[layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())], nn.Linear(512, 2000)
)
model = nn.DataParallel(model).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(512, 16, 512), torch.randint(0, 2000, (512, 16)))
for x, y in DataLoader(data, batch_size=args.batch_size):
    optimizer.zero_grad()
    logits = model(x.cuda())
    nn.functional.cross_entropy(logits.flatten(0, 1), y.cuda().flatten()).backward()
    optimizer.step()
print("done")
