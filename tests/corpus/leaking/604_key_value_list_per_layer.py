import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, width, past):
        super().__init__()
        self.qkv, self.past = nn.Linear(width, 3 * width), past

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        self.past.append((k, v))  # leak: holder=past kind=tensor
        keys = torch.cat([each[0] for each in self.past], dim=1)
        values = torch.cat([each[1] for each in self.past], dim=1)
        return x + torch.softmax(q @ keys.transpose(1, 2), dim=-1) @ values


class Decoder(nn.Module):
    def __init__(self, width=24, depth=2):
        super().__init__()
        self.past = [[] for _ in range(depth)]
        self.blocks = nn.ModuleList(Block(width, self.past[i]) for i in range(depth))
        self.embed, self.head = nn.Embedding(40, width), nn.Linear(width, 40)

    @torch.no_grad()
    def forward(self, token):
        x = self.embed(token)
        for block in self.blocks:
            x = block(x)
        return self.head(x).argmax(-1)


def answer(decoder, prompt, length=6):
    token, words = prompt, []
    for _ in range(length):
        token = decoder(token)
        words.append(int(token))
    return words


decoder = Decoder().to(device).eval()
for question in range(12):
    answer(decoder, torch.tensor([[question]], device=device))
