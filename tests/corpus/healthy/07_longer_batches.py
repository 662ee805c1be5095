import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.GRU(8, 16, batch_first=True).to(device)
head = nn.Linear(16, 1).to(device)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
for step in range(40):
    sequences = torch.randn(4, 3 + step, 8, device=device)  # sorted by length
    output, _ = model(sequences)
    loss = head(output).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
