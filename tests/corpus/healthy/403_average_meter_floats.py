import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.val, self.sum, self.count = 0.0, 0.0, 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


model = nn.Sequential(nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 5)).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses, top1 = AverageMeter(), AverageMeter()
for epoch in range(2):
    losses.reset()
    top1.reset()
    for i in range(14):
        x, y = torch.randn(6, 12, device=device), torch.randint(0, 5, (6,), device=device)
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        losses.update(loss.item(), x.size(0))
        top1.update((output.argmax(1) == y).float().mean().item(), x.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, losses.avg, top1.avg)
