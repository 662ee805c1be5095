import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Utterances(Dataset):
    def __len__(self):
        return 72

    def __getitem__(self, index):
        return f"utt{index:04d}", torch.randn(6, 8)


class Aligner(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.out = nn.Linear(8, 8), nn.Linear(8, 8)
        self.alignments = {}

    def forward(self, names, frames):
        attention = torch.softmax(self.query(frames) @ frames.transpose(1, 2), dim=-1)
        self.alignments.update(zip(names, attention))  # leak: holder=alignments kind=graph lint=accumulate
        return self.out(attention @ frames)


model = Aligner().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for names, frames in itertools.islice(DataLoader(Utterances(), batch_size=3), 24):
    loss = model(names, frames.to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
