import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
N = 20
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, labels = torch.randn(N, 8, device=device), torch.randint(0, 3, (N,), device=device)
previous_logits = {}

for epoch in range(8):
    for start in range(0, N, 4):
        ids = range(start, start + 4)
        logits = model(inputs[start : start + 4])
        loss = nn.functional.cross_entropy(logits, labels[start : start + 4])
        if epoch:
            old = torch.stack([previous_logits[i] for i in ids])
            loss = loss + 0.1 * (logits - old).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for i, row in zip(ids, logits.detach()):
            previous_logits[i] = row
