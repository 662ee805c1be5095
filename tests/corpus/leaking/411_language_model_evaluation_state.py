import math

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class RNNModel(nn.Module):
    def __init__(self, ntoken=30, nhid=16):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, nhid)
        self.rnn = nn.LSTM(nhid, nhid)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid = nhid

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.encoder(tokens), hidden)
        return self.decoder(output), hidden

    def init_hidden(self, bsz):
        return (torch.zeros(1, bsz, self.nhid, device=device), torch.zeros(1, bsz, self.nhid, device=device))


def evaluate(model, data, bptt=5):
    model.eval()
    total = 0.0
    hidden = model.init_hidden(data.size(1))
    for i in range(0, data.size(0) - bptt - 1, bptt):
        chunk, targets = data[i : i + bptt], data[i + 1 : i + 1 + bptt]
        output, hidden = model(chunk, hidden)  # leak: holder=hidden kind=graph lint=hidden-state,no-grad
        total += nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten()).item()
    return total / (data.size(0) // bptt)


model = RNNModel().to(device)
data = torch.randint(0, 30, (130, 4), device=device)
print("ppl", math.exp(evaluate(model, data)))
