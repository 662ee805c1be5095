import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Mixer:
    """Mixes each batch with the previous one."""

    def __init__(self):
        self.previous = None

    def __call__(self, x):
        mixed = x if self.previous is None else 0.7 * x + 0.3 * self.previous
        self.previous = x
        return mixed


mixer, model = Mixer(), nn.Linear(12, 12).to(device)
optimizer = torch.optim.Adagrad(model.parameters())
for step in range(40):
    batch = torch.randn(10, 12, device=device)
    output = model(mixer(batch))
    loss = (output - batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
