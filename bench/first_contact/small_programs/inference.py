import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=512)
args = parser.parse_args()
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
)
model = model.cuda().eval()
predictions = []
with torch.inference_mode():
    for (x,) in DataLoader(TensorDataset(torch.randn(1024, 3, 24, 24)), batch_size=args.batch_size):
        predictions.append(model(x.cuda()).argmax(1).cpu())
print(torch.cat(predictions).shape)
