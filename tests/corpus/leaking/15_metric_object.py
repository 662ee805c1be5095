import torch
from torch import nn


class AverageMeter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.sum = self.sum + value * n  # leak: holder=sum|losses kind=graph
        self.count += n

    @property
    def average(self):
        return self.sum / self.count


device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(40, 10).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = AverageMeter()
for step in range(20):
    images = torch.randn(32, 40, device=device)
    labels = torch.randint(0, 10, (32,), device=device)
    loss = criterion(model(images), labels)
    losses.update(loss, images.size(0))  # also: lint=accumulate
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("average", float(losses.average))
