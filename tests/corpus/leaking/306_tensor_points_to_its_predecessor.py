import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
generator = nn.Linear(4, 12).to(device)
optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
frame = torch.zeros(12, device=device)
for t in range(24):
    with torch.no_grad():
        following = 0.9 * frame + 0.1 * generator(torch.randn(4, device=device))
    following.before = frame  # leak: holder=before|following|frame kind=tensor
    loss = (generator(torch.randn(4, device=device)) - following).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    frame = following  # also:
