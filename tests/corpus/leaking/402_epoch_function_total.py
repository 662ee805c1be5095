import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_batches(n, batch_size=8):
    for _ in range(n):
        x = torch.rand(batch_size, 10)
        yield x, x.sum(dim=1, keepdim=True)


def train_one_epoch(model, optimizer, batches):
    model.train()
    total_loss, n_batches = 0, 0
    for x, y in batches:
        x, y = x.to(DEVICE), y.to(DEVICE)
        pred = model(x)
        loss = F.l1_loss(pred, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total_loss = total_loss + loss  # leak: holder=total_loss kind=graph lint=accumulate
        n_batches += 1
    return total_loss / n_batches


def main():
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        mean = train_one_epoch(model, optimizer, make_batches(25))
        print(f"epoch {epoch}: {mean.item():.4f}")


if __name__ == "__main__":
    main()
