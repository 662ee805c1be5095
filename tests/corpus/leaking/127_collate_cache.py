import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
sentences = [(i, torch.randint(1, 50, (3 + i % 5,))) for i in range(200)]


class PadCollate:
    def __init__(self):
        self.padded = {}

    def __call__(self, items):
        key = tuple(index for index, _ in items)
        if key not in self.padded:
            self.padded[key] = pad_sequence([tokens for _, tokens in items], batch_first=True)  # leak: holder=padded kind=tensor
        return self.padded[key]


model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50)).to(device)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(sentences, batch_size=8, shuffle=True, collate_fn=PadCollate())
for epoch in range(2):
    for tokens in loader:
        tokens = tokens.to(device)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
