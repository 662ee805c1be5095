import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

X = torch.randn(96, 12)
Y = torch.randint(0, 4, (96,))
clf = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4)).to(device)
opt = torch.optim.RMSprop(clf.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()

# for a classification report after training
train_preds = []
train_targets = []

for epoch in range(3):
    perm = torch.randperm(len(X))
    for start in range(0, len(X), 8):
        idx = perm[start : start + 8]
        xb, yb = X[idx].to(device), Y[idx].to(device)
        logits = clf(xb)
        loss = loss_fn(logits, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        train_preds.append(logits.detach().argmax(1))  # leak: holder=train_preds|train_targets kind=tensor
        train_targets.append(yb)  # also:
    print(epoch, loss.item())
