import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class CachedDataset(Dataset):
    def __init__(self, n):
        self.n, self.cache = n, {}

    def __len__(self):
        return self.n

    def __getitem__(self, idx):
        if idx not in self.cache:
            generator = torch.Generator().manual_seed(idx)
            self.cache[idx] = torch.rand(3, 6, 6, generator=generator)
        image = self.cache[idx]
        return (image.flip(-1) if torch.rand(()) < 0.5 else image), idx % 4


loader = DataLoader(CachedDataset(40), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(9):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
