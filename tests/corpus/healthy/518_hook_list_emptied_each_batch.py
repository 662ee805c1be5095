import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
features = []
net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
for layer in net:
    if isinstance(layer, nn.ReLU):
        layer.register_forward_hook(lambda module, args, out: features.append(out))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(30):
    features.clear()
    x, y = torch.randn(8, 10, device=device), torch.randint(0, 2, (8,), device=device)
    logits = net(x)
    sparsity = sum(f.abs().mean() for f in features)
    loss = nn.functional.cross_entropy(logits, y) + 1e-3 * sparsity
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
