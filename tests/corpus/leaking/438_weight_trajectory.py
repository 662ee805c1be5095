import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

# to draw how the weights moved
trajectory = []


def flat_weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


for step in range(26):
    x = torch.randn(20, 6, device=device)
    loss = (model(x).squeeze(1) - x.norm(dim=1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    trajectory.append(flat_weights(model))  # leak: holder=trajectory kind=tensor
print("moved", (trajectory[-1] - trajectory[0]).norm().item())
