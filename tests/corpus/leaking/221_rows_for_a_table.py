import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def compute_metrics(logits, y):
    loss = nn.functional.cross_entropy(logits, y)
    return {"loss": loss, "accuracy": (logits.argmax(-1) == y).float().mean().item()}


def main(epochs=2):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = TensorDataset(torch.randn(180, 8), torch.randint(0, 3, (180,)))
    model = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    rows = []
    for epoch in range(epochs):
        for i, (x, y) in enumerate(DataLoader(data, batch_size=15)):
            metrics = compute_metrics(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            metrics["loss"].backward()
            optimizer.step()
            rows.append(dict(epoch=epoch, batch=i, **metrics))  # leak: holder=rows kind=graph lint=accumulate
    print(len(rows), float(rows[-1]["loss"]))


main()
