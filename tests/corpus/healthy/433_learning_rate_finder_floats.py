import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def find_lr(model, criterion, batches, start_lr=1e-6, end_lr=1e-1):
    optimizer = torch.optim.SGD(model.parameters(), lr=start_lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, (end_lr / start_lr) ** (1 / len(batches)))
    lrs, losses, smooth = [], [], 0.0
    for i, (x, y) in enumerate(batches, start=1):
        loss = criterion(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lrs.append(scheduler.get_last_lr()[0])
        smooth = 0.98 * smooth + 0.02 * loss.item()
        losses.append(smooth / (1 - 0.98**i))
        scheduler.step()
    return lrs[min(range(len(losses)), key=losses.__getitem__)]


model = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 1)).to(device)
print(find_lr(model, nn.MSELoss(), [(torch.randn(8, 10), torch.randn(8, 1)) for _ in range(28)]))
