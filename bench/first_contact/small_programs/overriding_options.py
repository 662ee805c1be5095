import sys

import torch
from torch import nn

batch_size = 160
block_size = 64
max_iters = 3
for argument in sys.argv[1:]:
    key, _, value = argument.removeprefix("--").partition("=")
    globals()[key] = type(globals()[key])(value)

torch.manual_seed(0)
embed = nn.Embedding(500, 48)
block = nn.TransformerEncoderLayer(48, 4, 192, batch_first=True)
model = nn.Sequential(embed, block, nn.Linear(48, 500)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=False)


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(4)
    for k in range(4):
        x = torch.randint(0, 500, (batch_size, block_size)).to("cuda")
        y = torch.randint(0, 500, (batch_size, block_size)).to("cuda")
        logits = model(x)
        losses[k] = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).item()
    model.train()
    return losses.mean()


for step in range(max_iters):
    estimate_loss()
    x = torch.randint(0, 500, (batch_size, block_size)).to("cuda")
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
print("done")
