"""The style of fairseq: move_to_cuda for nested samples, batches skipped after OOM, LSTM seq2seq with packed
sequences."""

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.manual_seed(3)
use_cuda = torch.cuda.is_available()


def apply_to_sample(f, sample):
    if torch.is_tensor(sample):
        return f(sample)
    if isinstance(sample, dict):
        return {key: apply_to_sample(f, value) for key, value in sample.items()}
    if isinstance(sample, (list, tuple)):
        return type(sample)(apply_to_sample(f, x) for x in sample)
    return sample


def move_to_cuda(sample, device=None):
    device = device or torch.cuda.current_device()
    return apply_to_sample(lambda t: t.to(device="cuda", non_blocking=True), sample)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 16, num_layers=2, bidirectional=True, dropout=0.1, batch_first=True)

    def forward(self, tokens, lengths):
        x = self.embed(tokens)
        packed = pack_padded_sequence(x, lengths.data.tolist(), batch_first=True, enforce_sorted=False)
        out, (h, c) = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, padding_value=0.0)
        return out, h, c


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16, padding_idx=0)
        self.cell = nn.LSTMCell(16 + 32, 32)
        self.attn = nn.Linear(32, 32, bias=False)
        self.out = nn.Linear(64, 30)

    def forward(self, prev, memory, mask):
        h = memory.new_zeros(memory.size(0), 32)
        c = memory.new_zeros(memory.size(0), 32)
        context = memory.new_zeros(memory.size(0), 32)
        outputs = []
        for t in range(prev.size(1)):
            h, c = self.cell(torch.cat([self.embed(prev[:, t]), context], 1), (h, c))
            scores = torch.bmm(memory, self.attn(h).unsqueeze(2)).squeeze(2)
            scores = scores.float().masked_fill_(mask, float("-inf")).type_as(scores)
            context = (scores.softmax(1).unsqueeze(1) @ memory).squeeze(1)
            outputs.append(self.out(torch.cat([h, context], 1)))
        return torch.stack(outputs, 1)


encoder, decoder = Encoder(), Decoder()
if use_cuda:
    encoder.cuda()
    decoder.cuda()
params = [*encoder.parameters(), *decoder.parameters()]
optimizer = torch.optim.Adagrad(params, lr=0.05)
criterion = nn.CrossEntropyLoss(ignore_index=0, reduction="sum", label_smoothing=0.1)

for step in range(4):
    lengths = torch.randint(3, 9, (5,))
    source = pad_sequence([torch.randint(1, 30, (n,)) for n in lengths], batch_first=True)
    sample = {
        "net_input": {"src_tokens": source, "src_lengths": lengths, "prev": torch.randint(1, 30, (5, 6))},
        "target": torch.randint(0, 30, (5, 6)),
        "ntokens": 30,
        "nested": [torch.ones(2), (torch.zeros(1),)],
    }
    if use_cuda:
        sample = move_to_cuda(sample)
    try:
        net = sample["net_input"]
        memory, h, c = encoder(net["src_tokens"], net["src_lengths"].cpu())
        logits = decoder(net["prev"], memory, net["src_tokens"].eq(0)[:, : memory.size(1)])
        loss = criterion(logits.view(-1, 30), sample["target"].view(-1)) / sample["ntokens"]
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(params, 0.5)
        optimizer.step()
    except RuntimeError as e:
        if "out of memory" not in str(e):
            raise
        print("| WARNING: ran out of memory, skipping batch")
        for p in params:
            p.grad = None
        torch.cuda.empty_cache()
        continue
    print(step, loss.data.item(), norm.item())
