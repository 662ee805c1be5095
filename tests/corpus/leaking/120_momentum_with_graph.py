import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class UnrolledMomentum:
    """SGD with momentum, differentiable with respect to its learning rate."""

    def __init__(self, parameters, rate=0.01, beta=0.9):
        self.parameters = list(parameters)
        self.rate, self.beta = rate, beta
        self.velocity = [torch.zeros_like(p) for p in self.parameters]

    def step(self, loss):
        grads = torch.autograd.grad(loss, self.parameters, create_graph=True)
        self.velocity = [self.beta * v + g for v, g in zip(self.velocity, grads)]  # leak: holder=velocity kind=graph lint=accumulate
        with torch.no_grad():
            for p, v in zip(self.parameters, self.velocity):
                p -= self.rate * v


model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 1)).to(device)
unrolled = UnrolledMomentum(model.parameters())
for step in range(20):
    x = torch.randn(9, 4, device=device)
    unrolled.step((model(x) - x.prod(1, keepdim=True)).square().mean())
