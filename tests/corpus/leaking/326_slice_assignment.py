import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def run(steps=22):
    model = nn.Linear(9, 3).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    curve = []
    for _ in range(steps):
        logits = model(torch.randn(5, 9, device=device))
        entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
        optimizer.zero_grad()
        entropy.backward()
        optimizer.step()
        curve[len(curve) :] = [entropy]  # leak: holder=curve kind=graph lint=accumulate
    return curve


print(len(run()))
