import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(30, 16), nn.GRU(16, 16, batch_first=True)
        self.memories = []

    def forward(self, ids):
        out, _ = self.rnn(self.embed(ids))
        self.memories.append(out)  # leak: holder=memories kind=tensor
        return out.mean()


model = Recurrent().to(device)
model.eval()
total = 0.0
with torch.no_grad():
    for window in torch.randint(0, 30, (40, 12)).split(1):
        total += model(window.to(device)).item()
