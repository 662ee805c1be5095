import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Reproducible:
    def __init__(self):
        self.states = {}

    def mark(self, step):
        self.states[step] = torch.get_rng_state()  # leak: holder=states kind=tensor

    def rewind(self, step):
        torch.set_rng_state(self.states[step])


randomness = Reproducible()
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(22):
    randomness.mark(step)
    loss = model(torch.rand(5, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
