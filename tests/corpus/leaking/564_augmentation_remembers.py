import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class RandomJitter:
    def __init__(self, scale=0.1):
        self.scale = scale
        self.applied = []

    def __call__(self, x):
        noise = self.scale * torch.randn_like(x)
        self.applied.append(noise)  # leak: holder=applied|transform kind=tensor
        return x + noise


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for t in self.transforms:
            x = t(x)
        return x


class Shapes(Dataset):
    def __init__(self, transform):
        self.data, self.transform = torch.rand(48, 10), transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.transform(self.data[i]), i % 3


dataset = Shapes(Compose([torch.nn.Identity(), RandomJitter()]))
model = nn.Linear(10, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in DataLoader(dataset, batch_size=6, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
