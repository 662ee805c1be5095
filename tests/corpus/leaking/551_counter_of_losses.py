from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class JointModel(nn.Module):
    """Predicts the intent of a sentence and a tag for each word."""

    def __init__(self, vocab=60, width=12, intents=4, tags=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.intent, self.tag = nn.Linear(width, intents), nn.Linear(width, tags)

    def losses(self, words, intents, tags):
        h, (last, _) = self.encoder(self.embed(words))
        return {
            "intent": F.cross_entropy(self.intent(last[-1]), intents),
            "tag": F.cross_entropy(self.tag(h).flatten(0, 1), tags.flatten()),
        }


model = JointModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
totals = Counter()
for step in range(24):
    words = torch.randint(0, 60, (4, 7), device=device)
    losses = model.losses(words, torch.randint(0, 4, (4,), device=device), torch.randint(0, 6, (4, 7), device=device))
    loss = losses["intent"] + 0.5 * losses["tag"]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    totals.update(losses)  # leak: holder=totals kind=graph lint=accumulate
print({name: float(value) / 24 for name, value in totals.items()})
