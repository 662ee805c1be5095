import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(2000, 32), nn.Linear(32, 2000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    tokens = torch.randint(0, 2000, (48, 128), device="cuda")
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.5f}")
