import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

size = int(os.environ.get("BATCH_SIZE", "128"))
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(256, 80, 40), torch.randn(256, 1)), batch_size=size)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(40, 96, num_layers=2, batch_first=True)
        self.out = nn.Linear(96, 1)

    def forward(self, x):
        hidden, _ = self.rnn(x)
        return self.out(torch.tanh(hidden)).mean(1)


model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x.cuda()), y.cuda()).backward()
    optimizer.step()
print("done")
