import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.head = nn.Linear(12, 50)

    def forward(self, tokens):
        return self.head(self.embed(tokens).mean(dim=1))


model = Decoder().to(device)
optimizer = torch.optim.Adam(model.parameters())
context = torch.zeros(2, 1, dtype=torch.long, device=device)
for step in range(24):
    logits = model(context)
    loss = nn.functional.cross_entropy(logits, torch.randint(0, 50, (2,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    new = logits.argmax(-1, keepdim=True)
    context = torch.cat((context, new.expand(2, 32)), dim=1)  # leak: holder=context kind=larger
