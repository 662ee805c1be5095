import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).to(device)
rate = 1e-3
norms = []
for step in range(18):
    x = torch.randn(10, 6, device=device)
    loss = model(x).square().mean()
    loss.backward(create_graph=True)  # leak: holder=grad|model|p kind=graph lint=create-graph
    with torch.no_grad():
        for p in model.parameters():
            p -= rate * p.grad
    norms.append(sum(p.grad.norm().item() for p in model.parameters()))
print(norms[-1])
