import torch
from torch import nn
from torch.optim import Optimizer

device = "cuda" if torch.cuda.is_available() else "cpu"


class MedianSGD(Optimizer):
    """Updates the parameters with the median of the last five gradients."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state.setdefault("grads", []).append(p.grad.clone())  # leak: holder=grads|state|optimizer kind=tensor
                p.add_(torch.stack(state["grads"][-5:]).median(0).values, alpha=-group["lr"])


model = nn.Linear(8, 2).to(device)
optimizer = MedianSGD(model.parameters())
for step in range(22):
    loss = model(torch.randn(6, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
