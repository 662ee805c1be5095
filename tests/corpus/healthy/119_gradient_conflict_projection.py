import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
trunk = nn.Linear(8, 12).to(device)
heads = nn.ModuleList([nn.Linear(12, 1), nn.Linear(12, 1), nn.Linear(12, 1)]).to(device)
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.05)
cosines = []
for step in range(22):
    hidden = torch.relu(trunk(torch.randn(10, 8, device=device)))
    losses = [head(hidden).square().mean() for head in heads]
    gradients = []
    for i, loss in enumerate(losses):
        grads = torch.autograd.grad(loss, list(trunk.parameters()), retain_graph=i < len(losses) - 1)
        gradients.append(torch.cat([g.flatten() for g in grads]))
    cosines.append(torch.cosine_similarity(gradients[0], gradients[1], dim=0).item())
    mean = torch.stack(gradients).mean(0)
    at = 0
    for p in trunk.parameters():
        p.grad = mean[at : at + p.numel()].view_as(p).clone()
        at += p.numel()
    optimizer.step()
