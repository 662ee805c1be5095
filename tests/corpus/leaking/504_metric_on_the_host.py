import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

use_cuda = torch.cuda.is_available()


def allreduce(tensor):
    """Average over a single worker."""
    return tensor / 1


class Metric(object):
    def __init__(self, name):
        self.name = name
        self.sum = torch.tensor(0.0)
        self.n = torch.tensor(0.0)

    def update(self, val):
        self.sum += allreduce(val.cpu())  # leak: holder=sum|train_loss kind=graph
        self.n += 1

    @property
    def avg(self):
        return self.sum / self.n


def accuracy(output, target):
    pred = output.max(1, keepdim=True)[1]
    return pred.eq(target.view_as(pred)).cpu().float().mean()


model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
if use_cuda:
    model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0125, momentum=0.9)
loader = DataLoader(TensorDataset(torch.rand(100, 3, 8, 8), torch.randint(0, 4, (100,))), batch_size=4, shuffle=True)

model.train()
train_loss = Metric("train_loss")
train_accuracy = Metric("train_accuracy")
for data, target in loader:
    if use_cuda:
        data, target = data.cuda(), target.cuda()
    optimizer.zero_grad()
    output = model(data)
    train_accuracy.update(accuracy(output, target))
    loss = F.cross_entropy(output, target)
    train_loss.update(loss)  # also: lint=accumulate
    loss.backward()
    optimizer.step()
print("loss", train_loss.avg.item(), "accuracy", 100.0 * train_accuracy.avg.item())
