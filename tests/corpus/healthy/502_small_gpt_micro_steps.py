import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
block_size, vocab, micro_steps, eval_iters = 8, 24, 3, 4
data = torch.randint(0, vocab, (400,))


def get_batch(split, batch_size=4):
    ix = torch.randint(0, 300 if split == "train" else 90, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


model = nn.Sequential(nn.Embedding(vocab, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, vocab)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            losses[k] = F.cross_entropy(model(X).flatten(0, 1), Y.flatten()).item()
        out[split] = losses.mean()
    model.train()
    return out


for step in range(20):
    if step % 8 == 0:
        losses = estimate_loss()
        print(f"step {step}: train {losses['train']:.4f}, val {losses['val']:.4f}")
    loss_accum = 0.0
    for micro_step in range(micro_steps):
        x, y = get_batch("train")
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / micro_steps
        loss_accum += loss.detach()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
