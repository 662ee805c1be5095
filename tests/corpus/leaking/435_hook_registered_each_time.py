import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def extract_features(model, layer, x):
    features = {"in": x}

    def hook(module, inp, out):
        features["out"] = out.detach()

    layer.register_forward_hook(hook)  # leak: holder=_forward_hooks|features|layer|model|hook kind=tensor
    model(x)
    return features["out"]


model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 4)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    x = torch.randn(8, 10, device=device)
    loss = nn.functional.cross_entropy(model(x), torch.randint(0, 4, (8,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        sparsity = (extract_features(model, model[1], x) == 0).float().mean().item()
