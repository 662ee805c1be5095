import torch
from torch import nn


class CharModel(nn.Module):
    def __init__(self, vocabulary=30, width=24):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, hidden=None):
        output, hidden = self.rnn(self.embed(tokens), hidden)
        return self.head(output), hidden


device = "cuda" if torch.cuda.is_available() else "cpu"
model = CharModel().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
hidden = None
for step in range(16):
    tokens = torch.randint(0, 30, (4, 9), device=device)
    logits, hidden = model(tokens[:, :-1], hidden)  # leak: holder=hidden kind=graph lint=hidden-state
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    grads = torch.autograd.grad(loss, model.head.parameters(), retain_graph=True)  # lint: retain-graph
    for p, g in zip(model.head.parameters(), grads):
        p.grad = g
    optimizer.step()
    optimizer.zero_grad()
