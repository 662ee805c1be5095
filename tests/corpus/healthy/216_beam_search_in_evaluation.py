import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
embed = nn.Embedding(12, 8).to(device)
cell = nn.GRUCell(8, 8).to(device)
head = nn.Linear(8, 12).to(device)
optimizer = torch.optim.Adam([*embed.parameters(), *cell.parameters(), *head.parameters()])


@torch.no_grad()
def beam_search(width=3, length=6):
    beams = [(0.0, [0], torch.zeros(1, 8, device=device))]
    for _ in range(length):
        candidates = []
        for score, words, hidden in beams:
            hidden = cell(embed(torch.tensor([words[-1]], device=device)), hidden)
            top = head(hidden).log_softmax(-1).topk(width)
            candidates += [(score + s.item(), [*words, w.item()], hidden) for s, w in zip(top.values[0], top.indices[0])]
        beams = sorted(candidates, key=lambda each: -each[0])[:width]
    return beams[0][1]


sentences = []
for step in range(24):
    tokens = torch.randint(0, 12, (4, 3), device=device)
    hidden, loss = torch.zeros(4, 8, device=device), 0.0
    for t in range(2):
        hidden = cell(embed(tokens[:, t]), hidden)
        loss = loss + nn.functional.cross_entropy(head(hidden), tokens[:, t + 1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 5:
        sentences.append(beam_search())
