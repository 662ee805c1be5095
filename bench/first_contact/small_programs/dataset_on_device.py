import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=64)
args = parser.parse_args()
torch.manual_seed(0)
images = torch.randn(9216, 3072).cuda()
labels = torch.randint(0, 10, (9216,)).cuda()
model = nn.Sequential(nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for start in range(0, 512, args.bs):
    x, y = images[start : start + args.bs], labels[start : start + args.bs]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print("done")
