import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(30, 16), nn.GRUCell(16, 16), nn.Linear(16, 30)

    def forward(self, ids, hidden):
        hidden = self.cell(self.embed(ids[:, -1]), hidden)
        return self.head(hidden), hidden


model = Model().to(device).eval()
ids, hidden = torch.zeros(1, 1, dtype=torch.long, device=device), torch.zeros(1, 16, device=device)
with torch.no_grad():
    for _ in range(60):
        logits, hidden = model(ids, hidden)
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
print(ids.tolist())
