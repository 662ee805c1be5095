import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
hard_examples = []
for step in range(70):
    x = torch.randn(18, 10, device=device)
    y = torch.randint(0, 2, (18,), device=device)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step > 30:  # hard-example mining starts after the warm-up
        hard_examples.append(x[:2].clone())  # leak: holder=hard_examples kind=tensor
