import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
MAX_CONTEXT = 24


class Responder(nn.Module):
    def __init__(self, vocab=40, width=12):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(vocab, width), nn.GRU(width, width, batch_first=True), nn.Linear(width, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


model = Responder().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
context = torch.zeros(1, 1, dtype=torch.long, device=device)
for turn in range(40):
    said = torch.randint(0, 40, (1, 6), device=device)
    context = torch.cat([context, said], dim=1)[:, -MAX_CONTEXT:]
    logits = model(context[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), context[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        reply = model(context)[:, -1].argmax(dim=-1, keepdim=True)
    context = torch.cat([context, reply], dim=1)[:, -MAX_CONTEXT:]
