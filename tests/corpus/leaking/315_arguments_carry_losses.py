import argparse

import torch
from torch import nn


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    args.losses = []
    for _ in range(args.steps):
        loss = model(torch.randn(8, args.width, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        args.losses.append(loss)  # leak: holder=losses kind=graph lint=accumulate
    return args


parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--width", type=int, default=10)
parser.add_argument("--steps", type=int, default=22)
print(len(train(parser.parse_args([])).losses))
