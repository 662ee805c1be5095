import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(3)


def collate(batch):
    tokens = pad_sequence([torch.tensor(words) for words, _ in batch], batch_first=True)
    return tokens.to(device), torch.tensor([label for _, label in batch], device=device)


examples = [([random.randrange(1, 60) for _ in range(random.randrange(3, 30))], random.randrange(2)) for _ in range(160)]
embed, rnn, head = nn.Embedding(60, 12, padding_idx=0), nn.GRU(12, 12, batch_first=True), nn.Linear(12, 2)
model = nn.ModuleDict({"embed": embed, "rnn": rnn, "head": head}).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    random.shuffle(examples)
    for start in range(0, len(examples), 8):
        tokens, labels = collate(examples[start : start + 8])
        _, last = model["rnn"](model["embed"](tokens))
        loss = nn.functional.cross_entropy(model["head"](last[0]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
