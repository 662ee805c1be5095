import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
X, Y = torch.randn(200, 6, device=device), torch.randint(0, 2, (200,), device=device)
labelled, unlabelled = list(range(10)), list(range(10, 200))
accuracy_curve = []

for query_round in range(10):
    model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(4):
        batch = torch.tensor(labelled, device=device)[torch.randint(0, len(labelled), (8,))]
        loss = nn.functional.cross_entropy(model(X[batch]), Y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        p = model(X[unlabelled]).softmax(1)
        uncertain = (-(p * p.log()).sum(1)).topk(5).indices.tolist()
        accuracy_curve.append((model(X).argmax(1) == Y).float().mean().item())
    picked = [unlabelled[i] for i in uncertain]
    labelled.extend(picked)
    unlabelled = [i for i in unlabelled if i not in picked]
print(accuracy_curve)
