import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class FeatureTap:
    """Collects the outputs of selected layers."""

    def __init__(self, model, names):
        self.activations = {name: [] for name in names}
        for name, module in model.named_modules():
            if name in names:
                module.register_forward_hook(self.make(name))

    def make(self, name):
        def tap(module, inputs, output):
            self.activations[name].append(output)  # leak: holder=activations kind=graph lint=hook-append

        return tap


model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6)).to(device)
tap = FeatureTap(model, {"0", "2"})
optimizer = torch.optim.Adam(model.parameters())
for _ in range(20):
    x = torch.randn(5, 6, device=device)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
