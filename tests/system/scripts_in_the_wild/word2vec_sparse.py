"""word2vec with negative sampling: sparse embeddings, SparseAdam, multinomial sampling, EmbeddingBag, nearest
neighbors."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
vocab, dim, negatives = 50, 12, 4
corpus = np.random.RandomState(1).randint(0, vocab, 400)
frequencies = torch.from_numpy(np.bincount(corpus, minlength=vocab) ** 0.75).float().to(device)


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Embedding(vocab, dim, sparse=True)
        self.v = nn.Embedding(vocab, dim, sparse=True)
        nn.init.uniform_(self.u.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.v.weight)

    def forward(self, center, context, negative):
        u = self.u(center)
        positive = F.logsigmoid((u * self.v(context)).sum(1))
        negative = F.logsigmoid(-torch.bmm(self.v(negative), u.unsqueeze(2)).squeeze(2)).sum(1)
        return -(positive + negative).mean()


model = SkipGram().to(device)
optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.05)
for step in range(6):
    at = torch.randint(1, len(corpus) - 1, (16,))
    center = torch.as_tensor(corpus[at.numpy()], device=device)
    context = torch.as_tensor(corpus[at.numpy() + 1]).to(device)
    negative = torch.multinomial(frequencies, 16 * negatives, replacement=True).view(16, negatives)
    optimizer.zero_grad()
    loss = model(center, context, negative)
    loss.backward()
    grad = model.u.weight.grad
    optimizer.step()
    print(step, loss.item(), grad.is_sparse, grad.coalesce().indices().size(1))

bag = nn.EmbeddingBag(vocab, dim, mode="mean").to(device)
text = torch.tensor(corpus[:20].tolist(), dtype=torch.int64, device=device)
offsets = torch.tensor([0, 5, 11], device=device)
out = bag(text, offsets)
out.pow(2).sum().backward()
print(out.sum().item(), bag.weight.grad.norm().item())
similarity = F.cosine_similarity(model.u.weight[:1], model.u.weight.detach(), dim=1)
print(similarity.topk(3).indices.tolist())
