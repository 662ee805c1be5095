import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def windows(length, width=6):
    """Yield each frame with the mean of the last three frames."""
    context = ()
    for _ in range(length):
        frame = torch.randn(width, device=device)
        context = context + (frame,)  # leak: holder=context kind=tensor
        yield torch.stack(context[-3:]).mean(0), frame


model = nn.Linear(6, 6).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for smooth, frame in windows(26):
    loss = (model(smooth) - frame).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
