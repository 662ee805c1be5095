"""Retains the graph of every loss until memory runs out: exit code 1 and torch's error."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.Adam(model.parameters())
losses = []
for i in range(30):
    x = torch.randn(256, 512, device="cuda")
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    losses.append(loss)
    print(i, loss.item(), flush=True)
