import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def fit(model, data, epochs, on_step):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for x, y in data:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            on_step(loss)  # leak: holder=history kind=graph


history = []
data = [(torch.randn(6, 9), torch.randint(0, 2, (6,))) for _ in range(8)]
model = nn.Sequential(nn.Linear(9, 27), nn.ReLU(), nn.Linear(27, 2)).to(device)
fit(model, data, epochs=3, on_step=history.append)  # also:
print("first", history[0].item(), "last", history[-1].item())
