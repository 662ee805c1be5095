import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class CachedDataset(Dataset):
    """Keeps decoded images so that the next epoch is faster."""

    def __init__(self, n=1000):
        self.n = n
        self.cache = {}

    def __len__(self):
        return self.n

    def load_image(self, idx):
        generator = torch.Generator().manual_seed(idx)
        return torch.rand(3, 6, 6, generator=generator)

    def __getitem__(self, idx):
        flip = random.random() < 0.5
        angle = random.uniform(-10, 10)
        key = (idx, flip, angle)
        if key not in self.cache:
            image = self.load_image(idx)
            self.cache[key] = image.flip(-1) if flip else image + 0.001 * angle  # leak: holder=cache kind=tensor
        return self.cache[key], idx % 4


loader = DataLoader(CachedDataset(160), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
