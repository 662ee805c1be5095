import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
encoder = nn.GRU(5, 12, batch_first=True).to(device)
decoder = nn.Linear(12, 5).to(device)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
for sequence in range(14):
    tokens = torch.randn(3, 20, 5, device=device)
    state, total = None, 0.0
    for chunk in tokens.split(5, dim=1):
        output, state = encoder(chunk, state)
        total = total + (decoder(output) - chunk).square().mean()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
