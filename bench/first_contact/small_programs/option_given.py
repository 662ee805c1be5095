import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch", type=int, default=8)
args = parser.parse_args()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 512), torch.randint(0, 1000, (256,)))
loader = DataLoader(data, batch_size=args.batch)
layers = [layer for _ in range(12) for layer in (nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1))]
model = nn.Sequential(*layers, nn.Linear(512, 1000)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x.repeat(64, 1).to("cuda")), y.repeat(64).to("cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
