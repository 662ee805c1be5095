import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Tagger(nn.Module):
    def __init__(self, vocab=80, tags=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, 12)
        self.lstm = nn.LSTM(12, 8, bidirectional=True, batch_first=True)
        self.out = nn.Linear(16, tags)
        self.all_logits = {}

    def forward(self, sentence_id, tokens):
        logits = self.out(self.lstm(self.embed(tokens))[0])
        self.all_logits[sentence_id] = logits  # leak: holder=all_logits kind=graph lint=accumulate
        return logits


tagger = Tagger().to(device)
optimizer = torch.optim.SGD(tagger.parameters(), lr=0.1)
for sentence_id in range(24):
    tokens = torch.randint(0, 80, (1, 10), device=device)
    tags = torch.randint(0, 5, (1, 10), device=device)
    loss = nn.functional.cross_entropy(tagger(sentence_id, tokens).flatten(0, 1), tags.flatten())
    tagger.zero_grad()
    loss.backward()
    optimizer.step()
