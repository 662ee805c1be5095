import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@torch.no_grad()
def estimate_loss(model, eval_iters=5):
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            x = torch.randint(0, 30, (4, 12), device=device)
            losses[k] = model(x[:, :-1], x[:, 1:])
        out[split] = losses.mean()
    model.train()
    return out


class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(30, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 30)

    def forward(self, x, y):
        logits = self.head(self.rnn(self.embed(x))[0])
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


model = CharLM().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for it in range(36):
    if it % 6 == 0:
        losses = estimate_loss(model)
        print(f"step {it}: train {losses['train']:.4f} val {losses['val']:.4f}")
    x = torch.randint(0, 30, (8, 10), device=device)
    loss = model(x[:, :-1], x[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
