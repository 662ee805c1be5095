import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50)

    def forward(self, token, past):
        past = [*past, self.embed(token)]
        return self.head(torch.tanh(self.mix(torch.stack(past).mean(0)))), past


@torch.no_grad()
def generate(model, length):
    token, past, text = torch.zeros(1, dtype=torch.long, device=device), [], []
    for _ in range(length):
        logits, past = model(token, past)
        token = logits.argmax(-1)
        text.append(token.item())
    return text


decoder = Decoder().to(device)
optimizer = torch.optim.Adam(decoder.parameters())
for step in range(14):
    logits, _ = decoder(torch.randint(0, 50, (4,), device=device), [])
    loss = nn.functional.cross_entropy(logits, torch.randint(0, 50, (4,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    generate(decoder, 6)
