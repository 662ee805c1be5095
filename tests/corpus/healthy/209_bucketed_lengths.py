import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(3)


class Sentences(Dataset):
    def __init__(self, count=140):
        self.lengths = [3 + i // 12 + (20 if i % 37 == 0 else 0) for i in range(count)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.randint(1, 40, (self.lengths[index],))


def collate(items):
    return pad_sequence(items, batch_first=True)


embed = nn.Embedding(40, 8, padding_idx=0).to(device)
rnn = nn.GRU(8, 12, batch_first=True).to(device)
head = nn.Linear(12, 40).to(device)
optimizer = torch.optim.Adam([*embed.parameters(), *rnn.parameters(), *head.parameters()])
for tokens in DataLoader(Sentences(), batch_size=5, collate_fn=collate):
    tokens = tokens.to(device)
    output, _ = rnn(embed(tokens[:, :-1]))
    loss = nn.functional.cross_entropy(head(output).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
