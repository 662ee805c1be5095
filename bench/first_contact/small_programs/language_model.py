import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device-batch-size", type=int, default=24)
parser.add_argument("--accumulate", type=int, default=2)
args = parser.parse_args()
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self, vocabulary=4000, width=64):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(3)]
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets=None):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits, nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


model = Model().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(3):
    for _ in range(args.accumulate):
        tokens = torch.randint(0, 4000, (args.device_batch_size, 64), device="cuda")
        logits, loss = model(tokens, tokens)
        (loss / args.accumulate).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print("done")
