import queue

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
pending = queue.Queue()


def main():
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(20):
        loss = model(torch.randn(10, 8, device=device)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pending.put((step, loss))  # leak: holder=pending kind=graph lint=accumulate


main()
