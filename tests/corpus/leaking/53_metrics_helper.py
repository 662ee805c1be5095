from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

metrics = defaultdict(list)


def note(key, value):
    metrics[key].append(value)  # leak: holder=metrics kind=graph


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = TensorDataset(torch.randn(240, 7), torch.randn(240, 2))
    model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 2)).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for x, y in DataLoader(data, batch_size=12, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.smooth_l1_loss(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            note("train/loss", loss)  # also: lint=accumulate
            note("train/lr", optimizer.param_groups[0]["lr"])
        print(epoch, sum(float(v) for v in metrics["train/loss"]) / len(metrics["train/loss"]))


if __name__ == "__main__":
    main()
