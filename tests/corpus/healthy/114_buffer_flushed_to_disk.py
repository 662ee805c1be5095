import pathlib
import tempfile

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class EmbeddingWriter:
    def __init__(self, folder, every=4):
        self.folder, self.every = pathlib.Path(folder), every
        self.pending, self.files = [], 0

    def write(self, embeddings):
        self.pending.append(embeddings.detach().cpu())
        if len(self.pending) >= self.every:
            torch.save(torch.cat(self.pending), self.folder / f"part{self.files}.pt")
            self.files += 1
            self.pending.clear()


model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
optimizer = torch.optim.Adam(model.parameters())
with tempfile.TemporaryDirectory() as folder:
    writer = EmbeddingWriter(folder)
    for step in range(24):
        z = model(torch.randn(10, 8, device=device))
        loss = z.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.write(z)
