"""PyTorch's word-level language model: batchify, a hidden state detached between windows, tied weights, gradient
clipping."""

import math

import torch
import torch.nn as nn

torch.manual_seed(1111)
device = torch.device("cuda")
ntokens, emsize, bptt = 30, 16, 7


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    return data.view(bsz, -1).t().contiguous().to(device)


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


class RNNModel(nn.Module):
    def __init__(self, rnn_type, nlayers=2):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntokens, emsize)
        if rnn_type in ("LSTM", "GRU"):
            self.rnn = getattr(nn, rnn_type)(emsize, emsize, nlayers, dropout=0.2)
        else:
            self.rnn = nn.RNN(emsize, emsize, nlayers, nonlinearity="relu")
        self.decoder = nn.Linear(emsize, ntokens)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        self.rnn_type, self.nlayers = rnn_type, nlayers

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        return nn.functional.log_softmax(self.decoder(self.drop(output)).view(-1, ntokens), dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        zeros = weight.new_zeros(self.nlayers, bsz, emsize)
        return (zeros, weight.new_zeros(self.nlayers, bsz, emsize)) if self.rnn_type == "LSTM" else zeros


corpus = batchify(torch.randint(0, ntokens, (200,)), 5)
criterion = nn.NLLLoss()
for kind in ("LSTM", "GRU", "RNN_RELU"):
    model = RNNModel(kind).to(device)
    hidden, lr, total = model.init_hidden(5), 2.0, 0.0
    for i in range(0, corpus.size(0) - 1, bptt):
        seq = min(bptt, len(corpus) - 1 - i)
        data, target = corpus[i : i + seq], corpus[i + 1 : i + 1 + seq].view(-1)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item()
    model.eval()
    input = torch.randint(ntokens, (1, 1), dtype=torch.long).to(device)
    words, state = [], model.init_hidden(1)
    with torch.no_grad():
        for _ in range(5):
            output, state = model(input, state)
            word = torch.multinomial(output.squeeze().div(1.0).exp().cpu(), 1)[0]
            input.fill_(word)
            words.append(word.item())
    print(kind, total, math.exp(total / 6), words)
