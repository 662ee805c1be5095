import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class CharRNN(nn.Module):
    def __init__(self, n_chars=20, n_hidden=16):
        super().__init__()
        self.embed, self.rnn, self.fc = nn.Embedding(n_chars, n_hidden), nn.GRU(n_hidden, n_hidden), nn.Linear(n_hidden, n_chars)

    def forward(self, x, h):
        out, h = self.rnn(self.embed(x), h)
        return self.fc(out), h


net = CharRNN().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
text = torch.randint(0, 20, (200, 3), device=device)
h = torch.zeros(1, 3, 16, device=device)
for i in range(0, 180, 6):
    logits, h = net(text[i : i + 6], h)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[i + 1 : i + 7].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    h.detach_()
