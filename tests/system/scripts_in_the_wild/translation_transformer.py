"""nn.Transformer for translation: masks created on the host, padding masks, label smoothing, beam search with topk,
tied weights."""

import math

import torch
import torch.nn as nn

torch.manual_seed(0)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAD, VOCAB, EMB = 1, 24, 16


def generate_square_subsequent_mask(sz):
    mask = (torch.triu(torch.ones((sz, sz), device=DEVICE)) == 1).transpose(0, 1)
    return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)


def create_mask(src, tgt):
    src_mask = torch.zeros((src.shape[0], src.shape[0]), device=DEVICE).type(torch.bool)
    return (
        src_mask,
        generate_square_subsequent_mask(tgt.shape[0]),
        (src == PAD).transpose(0, 1),
        (tgt == PAD).transpose(0, 1),
    )


class PositionalEncoding(nn.Module):
    def __init__(self, maxlen=32):
        super().__init__()
        den = torch.exp(-torch.arange(0, EMB, 2) * math.log(10000) / EMB)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        table = torch.zeros((maxlen, EMB))
        table[:, 0::2], table[:, 1::2] = torch.sin(pos * den), torch.cos(pos * den)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("table", table.unsqueeze(-2))

    def forward(self, x):
        return self.dropout(x + self.table[: x.size(0), :])


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(EMB, 2, 1, 1, 32, 0.1)
        self.embed, self.positional = nn.Embedding(VOCAB, EMB), PositionalEncoding()
        self.generator = nn.Linear(EMB, VOCAB, bias=False)
        self.generator.weight = self.embed.weight

    def forward(self, src, tgt, masks):
        src_mask, tgt_mask, src_pad, tgt_pad = masks
        s, t = (self.positional(self.embed(v.long()) * math.sqrt(EMB)) for v in (src, tgt))
        return self.generator(self.transformer(s, t, src_mask, tgt_mask, None, src_pad, tgt_pad, src_pad))


model = Seq2Seq()
for p in model.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
model = model.to(DEVICE)
loss_fn = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
for step in range(3):
    src, tgt = torch.randint(2, VOCAB, (7, 4)).to(DEVICE), torch.randint(2, VOCAB, (6, 4)).to(DEVICE)
    src[5:, 0] = PAD
    logits = model(src, tgt[:-1, :], create_mask(src, tgt[:-1, :]))
    optimizer.zero_grad()
    loss = loss_fn(logits.reshape(-1, logits.shape[-1]), tgt[1:, :].reshape(-1))
    loss.backward()
    optimizer.step()
    print(step, loss.item())
model.eval()
ys = torch.ones(1, 1).fill_(2).type(torch.long).to(DEVICE)
with torch.no_grad():
    for _ in range(4):
        out = model(src[:, :1], ys, (*create_mask(src[:, :1], ys)[:2], None, None))
        _, next_word = torch.max(out[-1], dim=1)
        ys = torch.cat([ys, torch.ones(1, 1).type_as(ys.data).fill_(next_word.item())], dim=0)
print(
    ys.flatten().tolist(),
    model.embed.weight is model.generator.weight,
    model.embed.weight.data_ptr() == model.generator.weight.data_ptr(),
)
