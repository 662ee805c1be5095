import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
clf = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4)).to(device)
opt = torch.optim.RMSprop(clf.parameters(), lr=1e-3)
X, Y = torch.randn(48, 12), torch.randint(0, 4, (48,))
scores = []

for epoch in range(6):
    preds, targets = [], []
    for start in range(0, len(X), 8):
        xb, yb = X[start : start + 8].to(device), Y[start : start + 8].to(device)
        logits = clf(xb)
        loss = nn.functional.cross_entropy(logits, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        preds.append(logits.detach().argmax(1).cpu())
        targets.append(yb.cpu())
    scores.append((torch.cat(preds) == torch.cat(targets)).float().mean().item())
print(scores)
