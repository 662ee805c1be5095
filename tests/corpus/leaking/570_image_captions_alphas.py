import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Captioner(nn.Module):
    def __init__(self, vocab=30, width=10, regions=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.attend = nn.Linear(width, regions)
        self.cell = nn.GRUCell(width, width)
        self.vocab = nn.Linear(width, vocab)

    def forward(self, regions, caption):
        h, logits, alphas = regions.mean(dim=1), [], []
        for t in range(caption.size(1) - 1):
            alpha = self.attend(h).softmax(dim=1)
            h = self.cell(self.embed(caption[:, t]) + (alpha[..., None] * regions).sum(1), h)
            logits.append(self.vocab(h))
            alphas.append(alpha)
        return torch.stack(logits, 1), torch.stack(alphas, 1)


model = Captioner().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
to_visualise = {}
for i in range(20):
    regions, caption = torch.randn(3, 6, 10, device=device), torch.randint(0, 30, (3, 5), device=device)
    scores, alphas = model(regions, caption)
    loss = F.cross_entropy(scores.flatten(0, 1), caption[:, 1:].flatten())
    loss += ((1.0 - alphas.sum(dim=1)) ** 2).mean()  # doubly stochastic attention
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    to_visualise[f"image_{i:05d}"] = (caption, alphas)  # leak: holder=to_visualise kind=graph lint=accumulate
