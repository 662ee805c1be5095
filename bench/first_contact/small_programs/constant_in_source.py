import torch
from torch import nn

BATCH_SIZE = 128
STEPS = 4

torch.manual_seed(0)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 4).cuda()
head = nn.Linear(64, 5).cuda()
parameters = [*encoder.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)
for step in range(STEPS):
    x = torch.randn(BATCH_SIZE, 48, 64, device="cuda")
    y = torch.randint(0, 5, (BATCH_SIZE,), device="cuda")
    loss = nn.functional.cross_entropy(head(encoder(x).mean(1)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
