import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
world_size = 1


def reduce_tensor(tensor):
    rt = tensor.clone()
    # dist.all_reduce(rt) where there are several
    rt /= world_size
    return rt


class AverageMeter:
    def __init__(self):
        self.val = self.sum = self.count = 0

    def update(self, val, n):
        self.val = val
        self.sum += val * n  # leak: holder=sum|losses_m kind=graph
        self.count += n


def train_one_epoch(epoch, model, batches, optimizer, log_interval=10):
    losses_m = AverageMeter()
    model.train()
    for batch_idx, (input, target) in enumerate(batches):
        input, target = input.to(device), target.to(device)
        output = model(input)
        loss = F.cross_entropy(output, target, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reduced_loss = reduce_tensor(loss)
        losses_m.update(reduced_loss, input.size(0))  # also: lint=accumulate
        if batch_idx % log_interval == 0:
            print(f"Train: {epoch} [{batch_idx}] Loss: {float(losses_m.val):.4f} ({float(losses_m.sum / losses_m.count):.4f})")


model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 5)).to(device)
batches = [(torch.randn(4, 3, 7, 7), torch.randint(0, 5, (4,))) for _ in range(26)]
train_one_epoch(0, model, batches, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True))
