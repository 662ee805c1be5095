import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
activation = {}


def get_activation(name):
    def hook(model, input, output):
        activation[name] = output.detach()

    return hook


model = nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.Linear(18, 3)).to(device)
for name, layer in model.named_children():
    layer.register_forward_hook(get_activation(name))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in range(26):
    out = model(torch.randn(7, 9, device=device))
    loss = nn.functional.cross_entropy(out, torch.randint(0, 3, (7,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dead = (activation["1"] == 0).float().mean().item()
