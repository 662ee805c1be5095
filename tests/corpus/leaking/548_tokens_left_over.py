import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class PackedStream:
    """Concatenates documents and splits them into blocks of equal length."""

    def __init__(self, block_size=16, batch_size=2):
        self.block, self.batch = block_size, batch_size
        self.pending = torch.zeros(0, dtype=torch.long, device=device)

    def add_document(self, tokens):
        self.pending = torch.cat([self.pending, tokens])  # leak: holder=pending|stream kind=larger

    def next_batch(self):
        need = self.block * self.batch
        taken, self.pending = self.pending[:need], self.pending[need:]
        return taken.view(self.batch, self.block)


stream = PackedStream()
model = nn.Sequential(nn.Embedding(30, 12), nn.Linear(12, 30)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(30):
    # documents are longer than what one batch takes
    for _ in range(2):
        stream.add_document(torch.randint(0, 30, (40,), device=device))
    batch = stream.next_batch()
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
