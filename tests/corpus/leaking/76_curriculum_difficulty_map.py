import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(6, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, targets = torch.randn(400, 6, device=device), torch.randn(400, 1, device=device)
difficulty = {}
for start in range(0, 400, 16):
    index = torch.arange(start, min(start + 16, 400))
    per_sample = (model(inputs[index]) - targets[index]).square().squeeze(1)
    optimizer.zero_grad()
    per_sample.mean().backward()
    optimizer.step()
    for sample, value in zip(index.tolist(), per_sample):
        difficulty[sample] = value  # leak: holder=difficulty kind=graph lint=accumulate
print(len(difficulty))
