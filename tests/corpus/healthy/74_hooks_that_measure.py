import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
sparsity = {}


def measure(name):
    def hook(module, inputs, output):
        sparsity[name] = (output == 0).float().mean().item()

    return hook


model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1)).to(device)
for name, module in model.named_modules():
    if isinstance(module, nn.ReLU):
        module.register_forward_hook(measure(name))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(18):
    loss = model(torch.randn(6, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    last_outputs = {"loss": loss, "sparsity": dict(sparsity)}
