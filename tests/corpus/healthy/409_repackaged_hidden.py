import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def repackage_hidden(h):
    """Wraps hidden states in new tensors, to detach them from their history."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


class RNNModel(nn.Module):
    def __init__(self, ntoken=30, nhid=16):
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(ntoken, nhid), nn.LSTM(nhid, nhid), nn.Linear(nhid, ntoken)
        self.nhid = nhid

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.encoder(tokens), hidden)
        return self.decoder(output), hidden


model = RNNModel().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
data = torch.randint(0, 30, (130, 4), device=device)
hidden = tuple(torch.zeros(1, 4, 16, device=device) for _ in range(2))
for i in range(0, 125, 5):
    hidden = repackage_hidden(hidden)
    output, hidden = model(data[i : i + 5], hidden)
    loss = nn.functional.cross_entropy(output.flatten(0, 1), data[i + 1 : i + 6].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
