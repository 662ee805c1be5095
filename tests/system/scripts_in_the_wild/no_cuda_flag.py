"""Options and APIs of examples from 2018: --no-cuda, args.cuda, model.cuda(), Variable, loss.data."""

import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.autograd import Variable

parser = argparse.ArgumentParser(description="old example")
parser.add_argument("--no-cuda", action="store_true", default=False, help="disables CUDA training")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()

torch.manual_seed(args.seed)
if args.cuda:
    torch.cuda.manual_seed(args.seed)
    torch.cuda.manual_seed_all(args.seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False

kwargs = {"num_workers": 0, "pin_memory": True} if args.cuda else {}
model = nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 3))
criterion = nn.CrossEntropyLoss()
if args.cuda:
    model.cuda()
    criterion.cuda()

dtype = torch.cuda.FloatTensor if args.cuda else torch.FloatTensor
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
data = torch.randn(96, 20)
labels = torch.randint(0, 3, (96,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data, labels), batch_size=32, **kwargs)
for epoch in range(2):
    for x, y in loader:
        if args.cuda:
            x, y = x.cuda(), y.cuda()
        x, y = Variable(x), Variable(y)
        noise = Variable(torch.zeros(x.size()).type(dtype))
        optimizer.zero_grad()
        loss = criterion(model(x + noise), y)
        loss.backward()
        optimizer.step()
        print(epoch, loss.data.item())
print(model[0].weight.data.cpu().numpy().sum())
