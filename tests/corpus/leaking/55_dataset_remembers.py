import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, length):
        self.length = length
        self.augmented = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, 8, 8, generator=generator) + 0.1 * torch.randn(3, 8, 8)
        self.augmented.append(image)  # leak: holder=augmented kind=tensor
        return image, index % 2


device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for images, labels in DataLoader(Noisy(200), batch_size=8):
    loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
