import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(32, 8).to(device)
optimizers = []


def one_round(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizers.append(optimizer)  # leak: holder=optimizers kind=tensor
    for _ in range(2):
        loss = model(torch.randn(16, 32, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


for _ in range(30):
    one_round(model)
