import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Slides(Dataset):
    """Caches decoded slides up to a limit, because decoding is slow."""

    def __init__(self, n=80, limit=24):
        self.n, self.limit, self.cache = n, limit, {}

    def __len__(self):
        return self.n

    def decode(self, i):
        return torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(i))

    def __getitem__(self, i):
        if i in self.cache:
            return self.cache[i], i % 4
        slide = self.decode(i)
        if len(self.cache) < self.limit:
            self.cache[i] = slide
        return slide, i % 4


model = nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Slides(), batch_size=8, shuffle=True)
for epoch in range(4):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
