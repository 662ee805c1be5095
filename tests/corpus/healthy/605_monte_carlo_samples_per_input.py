import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2)).to(device)


@torch.no_grad()
def uncertainty(x, samples=12):
    net.train()
    outputs = []
    for _ in range(samples):
        outputs.append(net(x).softmax(-1))
    return torch.stack(outputs).var(0).mean().item()


scores = [uncertainty(torch.randn(16, 8, device=device)) for _ in range(8)]
print(scores)
