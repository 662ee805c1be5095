import torch
import torch.nn as nn
import torch.optim as optim

cuda = torch.cuda.is_available()
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10), nn.LogSoftmax(dim=1))
if cuda:
    model.cuda()
optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
loss_record = []


def train(epoch):
    model.train()
    for batch_idx in range(10):
        data, target = torch.randn(8, 16), torch.randint(0, 10, (8,))
        if cuda:
            data, target = data.cuda(), target.cuda()
        optimizer.zero_grad()
        output = model(data)
        loss = nn.functional.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        loss_record.append(loss.data)  # leak: holder=loss_record kind=tensor


for epoch in range(1, 4):
    train(epoch)
