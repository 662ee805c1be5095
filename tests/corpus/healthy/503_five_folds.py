import copy

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
X, Y = torch.randn(100, 7), torch.randint(0, 2, (100,))


def folds(n, k):
    parts = torch.randperm(n).chunk(k)
    for i in range(k):
        yield torch.cat([p for j, p in enumerate(parts) if j != i]), parts[i]


fold_weights, fold_scores = [], []
for fold, (train_idx, val_idx) in enumerate(folds(100, 5)):
    model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    best_score, best_weights = 0.0, None
    for epoch in range(2):
        model.train()
        for idx in train_idx.split(10):
            loss = nn.functional.cross_entropy(model(X[idx].to(device)), Y[idx].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            score = (model(X[val_idx].to(device)).argmax(1).cpu() == Y[val_idx]).float().mean().item()
        if score >= best_score:
            best_score, best_weights = score, copy.deepcopy(model.state_dict())
    fold_weights.append(best_weights)
    fold_scores.append(best_score)
print("cv", sum(fold_scores) / 5)
