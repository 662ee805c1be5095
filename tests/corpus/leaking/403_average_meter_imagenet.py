import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class AverageMeter(object):
    """Computes and stores the average and current value"""

    def __init__(self, name, fmt=":f"):
        self.name = name
        self.fmt = fmt
        self.reset()

    def reset(self):
        self.val = 0
        self.avg = 0
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n  # leak: holder=sum|losses|avg kind=graph
        self.count += n
        self.avg = self.sum / self.count  # also:


def accuracy(output, target):
    with torch.no_grad():
        return (output.argmax(1) == target).float().mean().item() * 100


def train(loader, model, criterion, optimizer):
    losses = AverageMeter("Loss", ":.4e")
    top1 = AverageMeter("Acc@1", ":6.2f")
    model.train()
    for i, (images, target) in enumerate(loader):
        images, target = images.to(device), target.to(device)
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss, images.size(0))  # also: lint=accumulate
        top1.update(accuracy(output, target), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(f"[{i}/{len(loader)}] {top1.name} {top1.avg:.2f}")


model = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 5)).to(device)
loader = [(torch.randn(6, 3, 4, 4), torch.randint(0, 5, (6,))) for _ in range(28)]
train(loader, model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1))
