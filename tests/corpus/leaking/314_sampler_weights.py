import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class LossSampler(Sampler):
    def __init__(self, size, rounds):
        self.size, self.rounds = size, rounds
        self.weights = torch.ones(size)

    def __len__(self):
        return self.rounds

    def __iter__(self):
        for _ in range(self.rounds):
            yield int(torch.multinomial(self.weights[-self.size :], 1))

    def report(self, losses):
        self.weights = torch.cat((self.weights, losses.detach().cpu().repeat(self.size)))  # leak: holder=weights kind=larger


data = TensorDataset(torch.randn(40, 6), torch.randn(40, 1))
sampler = LossSampler(40, 120)
model = nn.Linear(6, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(data, batch_size=5, sampler=sampler):
    loss = (model(x.to(device)) - y.to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sampler.report(loss[None])
