import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
body = nn.ModuleList(nn.Linear(16, 16) for _ in range(10)).to(device)
optimizer = torch.optim.AdamW(body.parameters(), lr=1e-3)
for step in range(40):
    # one more layer is used each step until all are: its optimizer state is born late
    x = torch.randn(8, 16, device=device)
    for layer in body[: min(step + 1, 10)]:
        x = torch.tanh(layer(x))
    loss = x.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
