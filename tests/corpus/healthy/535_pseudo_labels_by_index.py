import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
pool = torch.randn(40, 8, device=device)
pseudo_labels = {}
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(7):
    for start in range(0, 40, 8):
        index = range(start, start + 8)
        logits = model(pool[start : start + 8])
        if epoch == 0:
            loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        else:
            loss = F.cross_entropy(logits, torch.stack([pseudo_labels[i] for i in index]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for i, label in zip(index, logits.detach().argmax(1)):
            pseudo_labels[i] = label.clone()
