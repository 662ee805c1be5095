import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Probe:
    def __init__(self, layer):
        self.responses = ()
        layer.register_forward_hook(self)

    def __call__(self, module, inputs, output):
        self.responses = self.responses + (output.detach().mean(0),)  # leak: holder=responses kind=tensor lint=hook-append


model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
probe = Probe(model[1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(24):
    loss = model(torch.randn(8, 10, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
